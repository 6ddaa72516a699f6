"""Exports rollouts to what Prime-RL's SFT reads, and answers a Prime-RL configuration that names a rollout directory.

Prime-RL's SFT takes rows with `prompt` and `completion`, or with `messages`, which it prefers where a row has both.
It has no training on stored rollouts with a reinforcement learning loss: `rollout_dir` is no key of its own.
"""

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rollstream.offline.convert.conversations import Conversation, Tally, refuse_unusable, usable
from rollstream.rows.open import open_rows
from rollstream.rows.write import Kind, write_rows
from rollstream.schemas.errors import ConfigurationError

Layout = Literal["prompt-completion", "messages"]


def export_for_sft(rollouts: Path, output: Path, *, layout: Layout, min_reward: float | None) -> Tally:
    """Write the usable rows of `rollouts` to `output`, .jsonl or .parquet; nothing is written if there are none.

    Raises `ConfigurationError` then, and for files that can't be read or written.
    """
    kind = _kind(output)
    tally, source = Tally(), open_rows(rollouts)
    with write_rows(output, kind) as writer:
        for fields in usable(source, min_reward, tally, lambda conversation: _row(conversation, layout)):
            writer.write(fields)
        refuse_unusable(rollouts, tally)
    return tally


def _kind(output: Path) -> Kind:
    # No directory of `save_to_disk`: Prime-RL opens its data by `load_dataset`, which takes none.
    if output.suffix not in (".jsonl", ".parquet"):
        raise ConfigurationError(f"{output}: Prime-RL reads .jsonl and .parquet; let the name end in one of them")
    return "jsonl" if output.suffix == ".jsonl" else "parquet"


def _row(conversation: Conversation, layout: Layout) -> dict[str, Any]:
    prompt, completion = list(conversation.prompt), list(conversation.completion)
    fields: dict[str, Any] = (
        {"messages": prompt + completion} if layout == "messages" else {"prompt": prompt, "completion": completion}
    )
    if conversation.tools:
        # As JSON text: each row has functions of its own, which no column of a file can hold.
        fields["tools"] = (
            conversation.tools
            if isinstance(conversation.tools, str)
            else json.dumps(conversation.tools, ensure_ascii=False)
        )
    return fields


def refuse_rollout_dir(config: Path) -> None:
    """Raise `ConfigurationError` with the command to use, if `config` is a TOML file that has `[data] rollout_dir`."""
    try:
        settings = tomllib.loads(config.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        # Whoever reads the file next says what is wrong with it.
        return
    rollout_dir = _table(settings, "data").get("rollout_dir")
    if isinstance(rollout_dir, str):
        raise ConfigurationError(
            f"{config} is a Prime-RL configuration with rollout_dir, but neither Prime-RL nor rollstream trains on "
            f"stored rollouts by {_algorithm(settings)}: their tokens have no logprobs of the policy that is trained. "
            f"Train on the good ones by imitation instead:\n  {_command(settings, rollout_dir)}\n"
            "--model takes a directory: `hf download NAME --local-dir DIRECTORY` fetches a model of the hub. Or run a "
            "loop that generates while it trains: `rollstream demo` shows one. Or write what Prime-RL's own SFT reads: "
            f"`rollstream verifiers export-sft {shlex.quote(rollout_dir)} sft.jsonl`"
        )


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, dict) else {}


def _algorithm(settings: Mapping[str, Any]) -> str:
    name = _table(settings, "training").get("algorithm")
    return f"algorithm = {name!r}" if isinstance(name, str) else "reinforcement learning"


def _command(settings: Mapping[str, Any], rollout_dir: str) -> str:
    """The command, with those of the settings that it has too."""
    model = _table(settings, "model").get("name")
    training = _table(settings, "training")
    options: dict[str, Any] = {
        "--rollouts": rollout_dir,
        "--min-reward": "1.0",
        "--model": model if isinstance(model, str) else "MODEL_DIRECTORY",
        "--output": "trained",
        "--batch-size": _table(settings, "data").get("batch_size"),
        "--epochs": training.get("num_epochs"),
        "--learning-rate": training.get("learning_rate"),
    }
    words = [
        f"{name} {shlex.quote(str(value))}" for name, value in options.items() if isinstance(value, str | int | float)
    ]
    return " ".join(["rollstream sft", *words])
