"""`rollstream gym reverify`: stored rollouts get new rewards of a resources server's `/verify`; no model is asked.

A server whose verdict needs a session would judge an empty one. So `GET /reverify_mode` must say `stateless`; with
`force` any server is asked, and the output is named `unsafe_…`. It goes on after kill -9, as a collection does.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rollstream.engines.http.replies import Reply
from rollstream.gym.addresses import RESOURCES
from rollstream.gym.agent_servers import GymServerAsker, Target
from rollstream.gym.collecting import TYPED
from rollstream.gym.options import ReverifyOptions
from rollstream.gym.output import rollout_row
from rollstream.gym.rows import stored_rollouts
from rollstream.offline.collection import collect
from rollstream.offline.settings import CollectSettings
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.rows.open import open_rows
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Sampling

_STATELESS: Final = "stateless"
_DERIVED: Final = ("output", "success", "metadata", "reward", "mask_sample", "failure_kind")
"""What the verdict changes; a verifier that repeats its request must not give back the old ones."""


def reverify(options: ReverifyOptions, stop: Stop, say: Say) -> int:
    """Verify again, and say what came of it. Returns the exit code."""
    if not options.resources_server_name and options.resources_server_url is None:
        raise ConfigurationError(
            "name the server: +resources_server_name=NAME, or +resources_server_url=http://HOST:PORT"
        )
    output = unsafe(options.output_jsonl_fpath) if options.force else options.output_jsonl_fpath
    tasks = stored_rollouts(open_rows(options.rollouts_jsonl_fpath))
    report = collect(_settings(options, output), tasks, GymServerAsker(_target(options)), stop, rollout_row)
    for line in report.lines():
        say(line)
    return report.exit_code


def unsafe(output: Path) -> Path:
    """The name of an output that nobody vouches for."""
    return output.with_name(f"unsafe_{output.name}")


def _target(options: ReverifyOptions) -> Target:
    return Target(
        head=options.head_server,
        url=options.resources_server_url,
        kind=RESOURCES,
        server=options.resources_server_name,
        route="/verify",
        first_route="/reverify_mode",
        accepts=(lambda reply: None) if options.force else _refuse_unless_stateless,
        body_of=lambda row: _request(row, has_all=not options.judge_failed_only),
        call_seconds=options.verify_seconds,
        start_seconds=options.start_seconds,
    )


def _refuse_unless_stateless(reply: Reply) -> None:
    mode = reply.body if reply.is_ok and isinstance(reply.body, str) else "unknown"
    if mode != _STATELESS:
        raise ConfigurationError(
            f"the server's /reverify_mode is {mode[:100]!r}, not {_STATELESS!r}: its verdicts need the rollout's own "
            "session; +force=true asks all the same, and names the output unsafe_…"
        )


def _request(row: Mapping[str, Any], *, has_all: bool) -> Mapping[str, Any] | None:
    """What `/verify` is asked; None for a row that keeps its reward."""
    if not has_all and row.get("reward") is not None:
        return None
    return {name: value for name, value in row.items() if name not in _DERIVED}


def _settings(options: ReverifyOptions, output: Path) -> CollectSettings:
    described = {"success_threshold": 1.0, "judge_failed_only": options.judge_failed_only, "force": options.force}
    return CollectSettings(
        output=output,
        kind="jsonl",
        sampling=Sampling(),
        described=described,
        concurrency=options.num_samples_in_parallel,
        beside=output.stem,
        typed_as=TYPED,
    )
