"""How pytest divides the suite between processes, and how long each lane took.

A lane is a folder of tests. Each process has a broker and a Redis of its own, and is given one piece of work after the
other. A piece is a file; or everything that runs engines or the whole loop, since two of those would starve each other;
or everything light, so that one process alone imports what those tests import. Unit tests are light too, but many: file
by file and at the end, they keep every process busy until the last one.
"""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

HEAVY = ("tests/engines/", "tests/e2e/")
LIGHT = ("tests/contract/", "tests/chart/", "tests/compose/", "tests/observability/")


class PieceByPiece(LoadScopeScheduling):
    """Pieces in the order of collection, which has the longest first."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(HEAVY):
            return "heavy"
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
