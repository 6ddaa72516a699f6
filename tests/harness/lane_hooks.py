"""How pytest divides the suite between processes, and how long each lane took.

A lane is a folder of tests. The processes share their servers; each is given one piece of work after the other.
A piece is a file; or everything that runs engines or the whole loop, since two of those would starve each other; or
everything light, or all tests of learning, so that one process alone imports what those tests import. Other unit
tests are light too, but many: file by file and at the end, they keep every process busy until the last one.
"""

import gc
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.harness.shared_servers import SERVERS, SharedServer, ask_at

HEAVY = ("tests/engines/", "tests/e2e/")
_NEEDS_TORCH = (
    "agent_integration", "bench_parts", "control_tokens", "demo_prepare", "fsdp_backend", "grpo_batches", "invariance",
    "learner", "library_examples", "load_environment", "losses", "sft", "sft_dataset", "sft_rollouts",
    "teaching_script", "train_command", "train_settings", "training_backend", "training_checkpoints",
    "training_end_to_end", "training_loops", "training_metrics", "weight_store",
)  # fmt: skip
LEARNING = [f"tests/unit/test_{name}.py" for name in _NEEDS_TORCH]
LIGHT = ("tests/contract/", "tests/chart/", "tests/compose/", "tests/observability/")

SHARED = pytest.StashKey[dict[str, SharedServer]]()


class PieceByPiece(LoadScopeScheduling):
    """Pieces in the order of collection, which has the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(HEAVY):
            return "heavy"
        if nodeid.startswith(("tests/reference/", *LEARNING)):
            return "learning"
        return "light" if nodeid.startswith(LIGHT) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> PieceByPiece:
    """What `--dist` would have chosen."""
    return PieceByPiece(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Two processes more than cores, as tests wait more than they compute; one more where they run whole stacks.

    A single file runs in this process.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    if len(config.args) == 1 and Path(config.args[0].partition("::")[0]).is_file():
        return 0
    runs_stacks = any(Path(argument).match("tests/ops") for argument in config.args)
    return len(os.sched_getaffinity(0)) + (1 if runs_stacks else 2)


def pytest_configure(config: pytest.Config) -> None:
    """A worker asks for servers where it was told to. Any other process has them, and starts what is asked for."""
    workerinput = getattr(config, "workerinput", None)
    if workerinput is None:
        config.stash[SHARED] = {name: SharedServer(start) for name, start in SERVERS.items()}
    ask_at(_addresses(config) if workerinput is None else workerinput["servers"])


def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker, before it starts, where to ask for servers."""
    node.workerinput["servers"] = _addresses(node.config)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: a full collection of garbage need not look at all of it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """No test runs any more."""
    for shared in config.stash.get(SHARED, {}).values():
        shared.stop()


def _addresses(config: pytest.Config) -> dict[str, str]:
    return {name: shared.address for name, shared in config.stash[SHARED].items()}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seconds of each lane's tests, side by side where they ran so."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[str(Path(report.nodeid.partition("::")[0]).parent)] += report.duration
    if seconds:
        lanes = ", ".join(f"{lane} {spent:.0f} s" for lane, spent in sorted(seconds.items()))
        terminalreporter.write_line(f"lanes: {lanes}")
