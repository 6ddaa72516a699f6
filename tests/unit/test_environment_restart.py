"""A restart within the tasks of an environment makes few of the earlier tasks again, however many there were."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rollstream.environments import sort_digits
from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Split, tasks_from
from rollstream.environments.reasoning_gym import ReasoningGym
from rollstream.offline.askers import EngineAsker
from rollstream.offline.collection import collect
from rollstream.offline.continuous.run import run_continuous
from rollstream.offline.output import scored_columns
from rollstream.offline.tasks import EnvironmentTasks
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.producers.sources.environment import EnvironmentSource
from rollstream.schemas.errors import EngineDeadError
from tests.harness.collecting import CountingEngine, a_job, keys_of, lines_of, settings_for
from tests.harness.counted_environment import NAME, PATH, Counted, InOrder


class CountedGym(ReasoningGym):
    """Notes how many entries the library made."""

    num_made = 0

    def _entries(self, seed: int) -> Iterator[dict[str, Any]]:
        for entry in super()._entries(seed):
            self.num_made += 1
            yield entry


@pytest.fixture(autouse=True)
def _none_made() -> None:
    InOrder.made.clear()


BLOCK = sort_digits._BLOCK_TASKS
STARTS: dict[str, tuple[str, dict[str, str], Split, tuple[int, ...], int]] = {
    "gym": ("reasoning_gym", {"dataset": "chain_sum"}, "train", (0, 1, 49, 50, 51, 99, 100, 137), 160),
    "gym, evaluate": ("reasoning_gym", {"dataset": "chain_sum"}, "evaluate", (0, 50, 137), 160),
    "gym, bounded": ("reasoning_gym", {"dataset": "chain_sum", "size": "120"}, "train", (0, 70, 119, 120, 500), 160),
    "digits": ("sort_digits", {}, "train", (0, 1, BLOCK - 1, BLOCK, BLOCK + 1), BLOCK + 20),
    "words": ("word_count", {}, "train", (0, 7, 99, 100, 105), 600),
    "words, validate": ("word_count", {}, "validate", (0, 7, 105), 600),
}


@pytest.mark.parametrize("case", STARTS)
def test_tasks_are_the_same_from_any_start(case: str) -> None:
    name, options, split, starts, count = STARTS[case]
    environment = load_environment(name, {name: Declaration(options=options)})
    whole = list(islice(environment.tasks(split, 3), count))
    asked = [task.messages[-1].content for task in whole]
    assert asked[:20] != asked[-20:], "each block has tasks of its own"
    for start in starts:
        assert list(islice(tasks_from(environment, split, 3, start), max(0, count - start))) == whole[start:]


def test_going_to_the_millionth_task_of_reasoning_gym_makes_less_than_a_hundred() -> None:
    gym = CountedGym("chain_sum")
    source = EnvironmentSource(gym, split="train", seed=0)
    first = gym.num_made
    assert first < 10
    found = [row.row for row in islice(source.rows(0, 1_000_049), 3)]
    assert found == [1_000_049, 1_000_050, 1_000_051]
    assert gym.num_made - first < 100


def test_a_data_set_without_enough_questions_for_a_split_has_no_tasks_there_from_any_start() -> None:
    class OneQuestion(ReasoningGym):
        def _entries(self, seed: int) -> Iterator[dict[str, Any]]:
            yield from ({"question": "1 + 1", "answer": "2", "metadata": {}} for _ in range(500))

    gym = OneQuestion("chain_sum")
    splits: list[Split] = ["train", "validate", "evaluate"]
    counts = [len(list(islice(gym.tasks_from(split, 0, 70), 100))) for split in splits]
    assert sorted(counts) == [0, 0, 100]


def test_the_first_tasks_of_sort_digits_stay_what_they_were() -> None:
    """A data set is named by its first 10,001 tasks, and runs go on over a change of this program."""
    asked = [task.messages[0].content for task in islice(load_environment("sort_digits").tasks("train", 0), 3)]
    assert asked == ["723=", "965=", "319="]
    assert (
        EnvironmentSource(load_environment("sort_digits"), split="train", seed=0).dataset
        == "sort_digits/train@d6959968cf63"
    )


def test_a_producers_source_makes_nothing_before_the_place_at_which_it_goes_on() -> None:
    source = EnvironmentSource(Counted(), split="train", seed=0)
    assert [row.prompt_id for row in islice(source.rows(0, 50_000), 2)] == [
        "counted/train/0/50000",
        "counted/train/0/50001",
    ]
    assert InOrder.made == [0, 50_000, 50_001]


def test_an_environment_that_can_only_make_its_tasks_in_order_is_named(caplog: pytest.LogCaptureFixture) -> None:
    source = EnvironmentSource(InOrder(), split="train", seed=0)
    with caplog.at_level(logging.WARNING):
        assert next(source.rows(0, 9_999)).row == 9_999
        assert not caplog.messages
        assert next(source.rows(0, 20_000)).row == 20_000
    [said] = caplog.messages
    assert "counted makes its first 20000 tasks again" in said
    assert "give it `tasks_from`" in said
    assert len(InOrder.made) == 1 + 10_000 + 20_001


def test_a_collection_that_goes_on_makes_no_task_again_whose_samples_are_done(tmp_path: Path) -> None:
    def run(engine: CountingEngine) -> None:
        tasks = EnvironmentTasks(Counted(), split="train", seed=0, num_rows=300)
        settings = settings_for(tmp_path / "out.jsonl", num_samples=1)
        collect(settings, tasks, EngineAsker(engine, settings, tasks), Stop(), scored_columns)

    with pytest.raises(EngineDeadError):
        run(CountingEngine(lambda prompt: EngineDeadError("GPU is gone") if prompt == "200=" else None))
    InOrder.made.clear()
    again = CountingEngine()
    run(again)
    asking, rest = InOrder.made[: 300 - InOrder.made[0]], InOrder.made[300 - InOrder.made[0] :]
    # Up to 8 are in flight, and what ends while the engine dies is not lost.
    assert 190 <= asking[0] <= 200
    assert asking == list(range(asking[0], 300))
    assert sorted({int(prompt[:-1]) for prompt in again.asked} - {*asking}) == []
    # The summary and the output need all tasks, each once; the first one tells whether there will be an output.
    assert rest == [*range(300), 0, *range(300)]
    assert keys_of(lines_of(tmp_path / "out.jsonl")) == [(row, 0) for row in range(300)]


def test_each_look_at_an_environment_makes_only_the_tasks_that_it_takes(tmp_path: Path) -> None:
    declared = {NAME: Declaration(path=PATH)}
    one = a_job(NAME, tmp_path / "out", environments=declared, environment="", num_tasks=5, max_tokens=8)
    for _ in range(3):
        run_continuous(one, Stop(), lambda _: None)
    assert InOrder.made == [*range(15)]
