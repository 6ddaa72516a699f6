"""Which tests a change reaches: through imports, processes and commands, and no others."""

import ast
import tomllib
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


def test_collecting_the_default_lanes_imports_nothing_that_takes_long() -> None:
    """Each process of a run collects all files: what a test alone needs is `Late`."""
    late = {"aiokafka", "anthropic", "datasets", "openai", "pandas", "torch", "transformers", "vllm"}
    lanes = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    files = [path for lane in lanes for path in (ROOT / lane).glob("test_*.py")]
    assert len(files) > 100
    assert {path.name: found for path in files if (found := _imported(path) & late)} == {}


def _imported(path: Path) -> set[str]:
    """The packages that a file imports when it is imported itself."""
    body = ast.parse(path.read_text()).body
    names = [alias.name for line in body if isinstance(line, ast.Import) for alias in line.names]
    names += [line.module or "" for line in body if isinstance(line, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}
