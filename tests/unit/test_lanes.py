"""Which tests a change reaches: through imports, processes and commands, and no others."""

from pathlib import Path

import pytest

from tests.harness.lane_hooks import LEARNING
from tests.harness.lanes import ROOT, module_of, reached

TESTS = [
    Path("tests/chart/test_pods.py"),
    Path("tests/contract/test_imports.py"),
    Path("tests/e2e/test_loop.py"),
    Path("tests/faults/test_trainer_faults.py"),
    Path("tests/integration/test_scorer.py"),
    Path("tests/integration/test_stage.py"),
    Path("tests/unit/test_losses.py"),
]
CHART, CONTRACT, LOOP, TRAINER, SCORER, STAGE, LOSSES = TESTS


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        # The trainer is a process of the whole loop's tests and of its own; nobody else starts it.
        ("trainer/rollstream/training/learning/losses.py", [CONTRACT, LOOP, TRAINER, LOSSES]),
        ("services/rollstream/scorer/loop.py", [CONTRACT, LOOP, SCORER]),
        ("services/rollstream/stage/loop.py", [CONTRACT, LOOP, STAGE]),
        ("tests/unit/test_losses.py", [CONTRACT, LOSSES]),
        ("schemas/rollstream/schemas/avro/manifest.json", [CHART, CONTRACT, LOOP, TRAINER, SCORER, STAGE]),
        ("uv.lock", TESTS),
        ("helm/rollstream/values.yaml", [CHART, CONTRACT]),
        ("README.md", []),
    ],
)
def test_a_change_reaches_the_tests_that_import_or_start_it(changed: str, tests: list[Path]) -> None:
    assert reached([Path(changed)], TESTS) == tests


def test_a_file_is_named_as_python_imports_it() -> None:
    assert module_of(Path("services/rollstream/bus/reader.py")) == "rollstream.bus.reader"
    assert module_of(Path("tests/unit/test_lanes.py")) == "tests.unit.test_lanes"
    assert module_of(Path("schemas/rollstream/schemas/avro/manifest.json")) == "rollstream.schemas"


def test_the_files_that_one_process_runs_are_there() -> None:
    assert [name for name in LEARNING if not (ROOT / name).is_file()] == []
