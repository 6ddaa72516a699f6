"""Every offline command with a small input and what its output must hold, for tables of kills and refusals."""

import json
import resource
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from tests.harness.collecting import some_prompts
from tests.harness.forking import run_words, start_forked
from tests.harness.processes import StartedProcess
from tests.harness.scoring import OWN

NUM_ROWS = 100
"""Two samples of each: more than a batch of notes."""
_CONFIG = """
run = "kills"

[kafka]
bootstrap_servers = "{kafka}"

[generator.engine]
kind = "scripted"
model_path = "no-tokenizer"

[generator.environments.word_count]
options = {{ num_examples = "{num_rows}" }}
"""
_CUSTOM = "own_rewards.brevity"

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineCommand:
    """One command. `output`: a file, or a directory of several; `keys`: the columns that tell rows apart.

    expected: those of all rows, each once; None: `NUM_ROWS` different ones. `path`: where its code finds more.
    """

    words: tuple[str, ...]
    output: Path
    keys: tuple[str, ...] = ("data_idx", "sample_idx")
    expected: frozenset[Key] | None
    path: Path | None = None

    def start(self, environment: Mapping[str, str] | None = None, *, num_bytes: int | None = None) -> StartedProcess:
        """Start it, where no file may have more than `num_bytes`; what it says goes to a file beside its output."""
        log = self.output.with_name("command.log")
        return start_forked(partial(_be, self.path, num_bytes, *self.words), log=log, env=environment)

    def found(self) -> Counter[Key]:
        """How often each row is in the output."""
        files = sorted(_row_files(self.output))
        rows = (row.fields for file in files for row in open_rows(file) if isinstance(row, ReadRow))
        return Counter(tuple(_hashable(row[name]) for name in self.keys) for row in rows)


def _hashable(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict) else value


def _be(path: Path | None, num_bytes: int | None, *words: str) -> None:
    if num_bytes is not None:
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    if path is not None:
        sys.path.insert(0, str(path))
    run_words(*words)


def _row_files(output: Path) -> list[Path]:
    if output.is_dir() and not (output / "state.json").exists():
        found = [*output.glob("part-??????.jsonl"), *output.glob("rollouts_*.jsonl")]
        return [path for path in found if path.stat().st_size]
    return [output]


def offline_command(name: str, folder: Path, kafka: str = "nowhere:9") -> OfflineCommand:
    """The command of this name, with its input in `folder`."""
    config = folder / "engine.toml"
    config.write_text(_CONFIG.format(kafka=kafka, num_rows=NUM_ROWS))
    some_prompts(folder / "data.jsonl", NUM_ROWS)
    if name.startswith("collect"):
        return _collect(name, folder, config)
    others = {
        "analyze-rewards": _analyze,
        "generate-rollouts": _generate,
        "word-count-rollouts": _count_words,
        "filter-difficulty": _filter,
    }
    return others[name](folder)


def _collect(name: str, folder: Path, config: Path) -> OfflineCommand:
    source = str(folder / "data.jsonl")
    words, output, keys = {
        "collect a file": ([source], "out.jsonl", "data_idx"),
        "collect into parquet": ([source], "out.parquet", "data_idx"),
        "collect into a directory": ([source], "out", "data_idx"),
        "collect an environment": (["word_count"], "out.jsonl", "data_idx"),
        "collect --every": (["word_count", "--every", "1s", "--num-tasks", "60"], "out", "original_task_id"),
        "collect --watch": (["--watch", source, "--every", "1s"], "out", "prompt"),
        "collect a topic": (["topic:TASKS", "--to", "topic:COLLECTED"], "out", "prompt"),
    }[name]
    asking = ("--config", str(config), "--num-samples", "2", "--max-tokens", "8", "--concurrency", "16")
    values: list[object] = [f"{row:05}=" if keys == "prompt" else row for row in range(NUM_ROWS)]
    if keys == "original_task_id":
        values = [str(row) for row in range(NUM_ROWS)]
    return OfflineCommand(
        words=("collect", *words, "--output", str(folder / output), *asking),
        output=folder / output,
        keys=(keys, "sample_idx"),
        expected=frozenset((value, sample) for value in values for sample in range(2)),
    )


def _generate(folder: Path) -> OfflineCommand:
    """It lacks the server, as its last word."""
    output = folder / "out.jsonl"
    words = ("generate-rollouts", "--model_path", "tiny", "--data_path", str(folder / "data.jsonl"), "--use_vllm")
    more = ("--num_samples", "2", "--max_tokens", "8", "--output_path", str(output), "--vllm_base_url")
    expected = frozenset((row, sample) for row in range(NUM_ROWS) for sample in range(2))
    return OfflineCommand(words=(*words, *more), output=output, expected=expected)


def _count_words(folder: Path) -> OfflineCommand:
    output = folder / "out"
    words = ("word-count-rollouts", "--mock", "--num-examples", str(NUM_ROWS), "--output", str(output))
    return OfflineCommand(words=words, output=output, keys=("metadata",), expected=None)


def _analyze(folder: Path) -> OfflineCommand:
    rollouts, output = folder / "rollouts.jsonl", folder / "scored.jsonl"
    rows = [
        {"prompt": f"{row}=", "response": "x" * (row % 7 + 1), "data_idx": row, "sample_idx": sample}
        for row in range(NUM_ROWS) for sample in range(2)
    ]  # fmt: skip
    rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "code").mkdir()
    (folder / "code" / "own_rewards.py").write_text(OWN)
    words = ("analyze-rewards", "--rollouts", str(rollouts), "--output", str(output), "--num_processes", "1")
    return OfflineCommand(
        words=(*words, "--reward_fn", "custom", _CUSTOM), output=output, path=folder / "code",
        keys=("data_idx", "sample_idx", "reward"),
        expected=frozenset((row, sample, -float(row % 7 + 1)) for row in range(NUM_ROWS) for sample in range(2)),
    )  # fmt: skip


def _filter(folder: Path) -> OfflineCommand:
    scored, output = folder / "scored.jsonl", folder / "out"
    rows = [
        {"prompt": f"{row}=", "reward": float(sample < row % 4), "data_idx": row, "sample_idx": sample}
        for row in range(NUM_ROWS) for sample in range(3)
    ]  # fmt: skip
    scored.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("filter-difficulty", "--data_path", str(scored), "--output_dir", str(output))
    expected = frozenset((row, sample) for row in range(NUM_ROWS) for sample in range(3))
    return OfflineCommand(words=words, output=output, expected=expected)
