"""Problems of the Reasoning Cache actor: names, files, parquet, the hub with its commit, and a loader of one's own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollstream.offline.tasks import CollectTask
from rollstream.rc_actor.datasets import evaluation_problems, packaged_datasets, training_problems
from rollstream.rc_actor.evaluation import EvaluationClock
from rollstream.rc_actor.reading import read_settings
from rollstream.rc_actor.settings import RCSettings
from rollstream.rows.row import BadRow
from rollstream.schemas.errors import ConfigurationError
from tests.harness.fake_hub import FakeHub, fake_hub

OLD, NEW = "a" * 40, "b" * 40
READ = """
import sys
from rollstream.rc_actor.datasets import training_problems
from rollstream.rc_actor.reading import read_settings
settings = read_settings("test_rc", ["output_dir=out", "train_dataset_names=[{hub_id: team/math, split: train}]"])
for begun in ("", sys.argv[1]):
    problems = training_problems(settings, begun)
    print(problems.identity(), *(task.messages[-1].content for task in problems))
"""

ROWS = [{"task": f"What is {n} + {{1}}?", "answer": str(n + 1)} for n in range(3)]


def settings(*words: str) -> RCSettings:
    return read_settings("test_rc", ["output_dir=out", *words])


def jsonl(path: Path) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def asked(given: RCSettings) -> list[tuple[int, str, str | None, str]]:
    found = list(training_problems(given))
    assert all(isinstance(task, CollectTask) for task in found)
    return [
        (task.number, task.messages[-1].content, task.reference_answer, task.metadata["dataset_name"])
        for task in found
        if isinstance(task, CollectTask)
    ]


@pytest.mark.parametrize("name", packaged_datasets())
def test_packaged_problems_have_answers(name: str) -> None:
    found = asked(settings(f"train_dataset_names=[{name}]"))
    assert len({problem for _, problem, _, _ in found}) == len(found) == 32
    assert all(answer for _, _, answer, _ in found)


def test_data_sets_by_name_file_and_parquet_come_one_after_the_other(tmp_path: Path) -> None:
    first, second = jsonl(tmp_path / "a.jsonl"), tmp_path / "b.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "dataset": "own"} for row in ROWS]), second)
    given = settings(f"train_dataset_names=[named, {second}]", f"+datasets.named={first}")
    assert asked(given) == [
        (number, ROWS[number % 3]["task"], ROWS[number % 3]["answer"], "named" if number < 3 else "own")
        for number in range(6)
    ]
    problems = training_problems(given)
    assert problems.identity().startswith("a.jsonl@")
    assert problems.num_rows == 6
    assert asked(
        given.model_copy(update={"train_subset": settings("++train_subset={begin: 2, end: 4}").train_subset})
    ) == [
        (0, ROWS[2]["task"], "3", "named"),
        (1, ROWS[0]["task"], "1", "own"),
    ]


def test_the_system_prompt_comes_before_and_the_template_around_a_problem(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl")
    given = settings(
        f"train_dataset_names=[{path}]", "actor.system_prompt=Think", "actor.task_template='Prove: {task}'"
    )
    task = next(iter(training_problems(given)))
    assert isinstance(task, CollectTask)
    assert [(one.role, one.content) for one in task.messages] == [
        ("system", "Think"),
        ("user", "Prove: What is 0 + {1}?"),
    ]
    assert task.metadata["bare_problem"] == "What is 0 + {1}?"


def test_a_row_without_a_problem_is_a_bad_row_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"answer": "1"}\n{"problem": 5}\n{"question": "q", "answer": "2"}\n')
    found = list(training_problems(settings(f"train_dataset_names=[{path}]")))
    assert [type(row) for row in found] == [BadRow, BadRow, CollectTask]
    assert isinstance(found[0], BadRow)
    assert "no text in task, problem, question, prompt" in found[0].why


@pytest.mark.parametrize("name", ["pope_hard_no_guide_test", "no_such.jsonl"])
def test_a_name_that_is_no_data_set_is_refused_with_what_to_write(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' is neither a file here nor a named data set .examples."):
        training_problems(settings(f"train_dataset_names=[{name}]"))


def test_no_training_data_is_an_error_and_no_test_data_is_not() -> None:
    with pytest.raises(ConfigurationError, match="train_dataset_names is empty"):
        training_problems(settings("train_dataset_names=[]"))
    assert evaluation_problems(settings("test_dataset_names=[]")) is None


def test_a_loader_of_ones_own_gets_the_names_and_gives_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_loader.py").write_text(
        "def load(names):\n"
        "    for name in names:\n"
        "        yield {'task': name if isinstance(name, str) else name['hub_id'], 'answer': '1'}\n"
        "    yield {'task': {1}}\n"
        "    if 'broken' in names: raise OSError('no disk')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = "dataset_loader=own_loader.load"
    problems = training_problems(settings(own, "train_dataset_names=[x, {hub_id: a/b}]"))
    found = list(problems)
    assert [task.messages[-1].content for task in found if isinstance(task, CollectTask)] == ["x", "a/b"]
    assert isinstance(found[2], BadRow)
    assert problems.num_rows is None
    assert problems.identity() == training_problems(settings(own, "train_dataset_names=[x, {hub_id: a/b}]")).identity()
    assert problems.num_rows == 3
    with pytest.raises(ConfigurationError, match=r"dataset_loader 'own_loader\.load' raised OSError: no disk"):
        list(training_problems(settings(own, "train_dataset_names=[broken]")))


def test_a_data_set_of_the_hub_is_read_at_the_commit_that_an_output_was_begun_with(tmp_path: Path) -> None:
    """In a process of its own: the hub's libraries read its address when they are imported."""
    files = [{"train.jsonl": f'{{"question": "{name}", "answer": "1"}}\n'.encode()} for name in ("old", "new")]
    commits = dict(zip((OLD, NEW), files, strict=True))
    begun = f"a.jsonl@0123 + hf://team/math@{OLD}?split=train"
    with fake_hub(FakeHub(repositories={"team/math": commits}, heads={"team/math": {"main": NEW}})) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": ""}
        command = [sys.executable, "-W", "error", "-c", READ, begun]
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=200, text=True)
    assert found.stdout.split() == [
        f"hf://team/math@{NEW}?split=train", "new", f"hf://team/math@{OLD}?split=train", "old",
    ]  # fmt: skip


def test_an_evaluation_is_due_once_in_n_versions_and_never_with_0() -> None:
    clock = EvaluationClock(every=10)
    assert [version for version in (0, 3, 9, 10, 11, 19, 20, 20, 45, 49, 44, 50) if clock.is_due(version)] == [
        10, 20, 45, 50,
    ]  # fmt: skip
    assert not EvaluationClock(every=10, last=50).is_due(59)
    assert not any(EvaluationClock(every=0).is_due(version) for version in range(100))
