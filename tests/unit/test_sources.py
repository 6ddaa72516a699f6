"""Sources: what a row becomes, what a bad row's error says, and that every position can be found again."""

import json
import re
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from rollstream.environments.load import load_environment
from rollstream.environments.protocol import Split, Task, TaskSet
from rollstream.process.settings.declared import Declaration
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.build import build_source, sampling_of
from rollstream.producers.sources.environment import EnvironmentSource
from rollstream.producers.sources.jsonl import JsonlSource
from rollstream.producers.sources.parquet import ParquetSource
from rollstream.producers.sources.protocol import Source
from rollstream.rows.write import rewrite_rows
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import AgentChoice, Message, Sampling
from tests.harness.unruly_environment import TasksUnreadable, Unruly


def jsonl(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "tasks.jsonl"
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.write_bytes(text.encode(errors="surrogateescape"))
    return path


def parquet(tmp_path: Path, rows: list[dict[str, Any]], row_group_size: int = 4) -> Path:
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return path


def test_a_prompt_becomes_a_user_message_and_other_fields_become_metadata(tmp_path: Path) -> None:
    source = JsonlSource(
        jsonl(tmp_path, {"prompt": "2+2=", "answer": 4, "level": 3, "metadata": {"topic": "sums"}}), seed=0
    )
    [row] = source.rows(0, 0)
    assert [(message.role, message.content) for message in row.messages] == [("user", "2+2=")]
    assert re.fullmatch(r"tasks\.jsonl@[0-9a-f]{12}/0", row.prompt_id)
    assert row.reference_answer == "4"
    assert row.metadata == {"level": "3", "topic": "sums"}


def test_messages_and_an_id_of_ones_own_are_kept(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Sort."}, {"role": "user", "content": "52910="}]
    source = JsonlSource(jsonl(tmp_path, {"id": "t-1", "messages": messages, "reference_answer": "01259"}), seed=0)
    [row] = source.rows(0, 0)
    assert row.prompt_id == f"{source.dataset}/t-1"
    assert [message.role for message in row.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a"', "line 3: it is not valid JSON"),
        ('["prompt"]', "line 3: expected a JSON object, got a list"),
        (
            '{"question": "a"}',
            "line 3: it has neither `prompt` nor `messages`, or nothing in it: its columns are ['question']",
        ),
        ('{"prompt": 7}', "line 3: its messages are neither text nor a list of messages: 7"),
        ('{"messages": []}', "line 3: it has neither `prompt` nor `messages`, or nothing in it"),
        ('{"messages": [{"role": "user"}]}', "line 3: a message's content is not text: None"),
        ('{"prompt": "a", "tools": 3}', "line 3: its tools are no list"),
        ('{"prompt": "\udcff"}', "line 3: it is not UTF-8"),
        (
            json.dumps({"prompt": "2+2=", **dict.fromkeys(map(str, range(5000)), 0)}),
            "line 3: it has 5000 metadata, more",
        ),
    ],
)
def test_a_bad_line_is_named_before_anything_is_submitted(tmp_path: Path, line: str, message: str) -> None:
    path = jsonl(tmp_path, {"prompt": "fine"}, "", line)
    with pytest.raises(ConfigurationError) as raised:
        JsonlSource(path, seed=0)
    assert message in str(raised.value)


def test_a_file_that_is_missing_empty_or_without_prompts_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set `path` to a JSONL file"):
        JsonlSource(tmp_path / "absent.jsonl", seed=0)
    with pytest.raises(ConfigurationError, match="has no rows"):
        JsonlSource(jsonl(tmp_path), seed=0)
    with pytest.raises(ConfigurationError, match="set `path` to a parquet file"):
        ParquetSource(jsonl(tmp_path, "{}"), seed=0)
    with pytest.raises(ConfigurationError, match=r"`prompt` or `messages`, has \['question'\]"):
        ParquetSource(parquet(tmp_path, [{"question": "a"}]), seed=0)


def test_parquet_rows_keep_messages_and_drop_nulls(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "a", "tool_call_id": None}], "answer": "A", "level": None},
        {"messages": [{"role": "user", "content": "b", "tool_call_id": "x"}], "answer": None, "level": 2},
    ]
    found = {row.row: row for row in ParquetSource(parquet(tmp_path, rows), seed=0).rows(0, 0)}
    assert [(row.reference_answer, row.metadata) for _, row in sorted(found.items())] == [
        ("A", {}),
        (None, {"level": "2"}),
    ]


def written_here(tmp_path: Path, rows: list[dict[str, Any]]) -> ParquetSource:
    """A source of a file of our own writer, which writes columns whose values disagree as JSON text."""
    rewrite_rows(tmp_path / "tasks.parquet", "parquet", lambda: rows)
    return ParquetSource(tmp_path / "tasks.parquet", seed=0)


def test_a_row_asks_the_same_from_jsonl_and_from_parquet_that_was_written_here(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 7, "prompt": "a", "answer": 72, "metadata": {"level": 1}},
        {"id": "x", "messages": [{"role": "user", "content": "b"}], "answer": "72", "metadata": {"level": "hard"}},
        {"id": "y", "messages": [{"role": "user", "content": "c"}], "answer": [1, "b"], "size": {"x": {}}},
        {"id": "z", "prompt": "d", "answer": "0.5", "size": 72},
    ]

    def found(source: Source) -> list[tuple[Any, ...]]:
        in_order = sorted(source.rows(0, 0), key=lambda row: row.row)
        ids = [row.prompt_id.rpartition("/")[2] for row in in_order]
        return [(one, row.messages, row.reference_answer, row.metadata) for one, row in zip(ids, in_order, strict=True)]

    wanted = found(JsonlSource(jsonl(tmp_path, *rows), seed=0))
    assert found(written_here(tmp_path, rows)) == wanted
    with pytest.raises(ConfigurationError, match="column `id` has 2 values, 1 different ones"):
        written_here(tmp_path, [{"prompt": "a", "id": 7}, {"prompt": "b", "id": "7"}])


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\x00"])
def test_json_that_cannot_be_read_names_its_row(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1: (it is not valid JSON|its JSON is nested too deeply)"):
        list(JsonlSource(jsonl(tmp_path, text), seed=0).rows(0, 0))
    marked = pyarrow.field("answer", pyarrow.string(), metadata={b"rollstream.values": b"json"})
    schema = pyarrow.schema([pyarrow.field("prompt", pyarrow.string()), marked])
    table = pyarrow.table({"prompt": ["a"], "answer": [text]}, schema=schema)
    pyarrow.parquet.write_table(table, tmp_path / "tasks.parquet")
    with pytest.raises(ConfigurationError, match=r"row 0: its column 'answer' is (not valid JSON|nested too deeply)"):
        list(ParquetSource(tmp_path / "tasks.parquet", seed=0).rows(0, 0))


def test_files_of_one_name_and_different_content_are_different_sources(tmp_path: Path) -> None:
    for folder, asked in (("math", "2+2="), ("code", "print(")):
        (tmp_path / folder).mkdir()
        jsonl(tmp_path / folder, {"prompt": asked})
        parquet(tmp_path / folder, [{"prompt": asked}])
    for kind, name in ((JsonlSource, "tasks.jsonl"), (ParquetSource, "tasks.parquet")):
        math, code = (kind(tmp_path / folder / name, seed=0) for folder in ("math", "code"))
        assert next(math.rows(0, 0)).prompt_id != next(code.rows(0, 0)).prompt_id
        (tmp_path / "math" / name).rename(tmp_path / name)
        assert kind(tmp_path / name, seed=0).dataset == math.dataset


def test_an_environment_is_another_source_where_it_gives_other_tasks_and_only_there() -> None:
    def source(name: str, seed: int = 0, **options: str) -> str:
        loaded = load_environment(name, {name: Declaration(options=options)})
        return EnvironmentSource(loaded, split="train", seed=seed).dataset

    assert source("word_count", num_examples="20") != source("word_count", num_examples="30")
    assert source("word_count", seed=0) == source("word_count", seed=1)
    assert source("sort_digits", seed=0) != source("sort_digits", seed=1)


def test_rows_with_the_same_id_are_refused_since_they_would_be_one_group(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "y"}, {"prompt": "c", "id": "x"}]
    with pytest.raises(ConfigurationError, match="line 3: another line has its `id` too"):
        JsonlSource(jsonl(tmp_path, *rows), seed=0)
    with pytest.raises(ConfigurationError, match="column `id` has 3 values, 2 different ones"):
        ParquetSource(parquet(tmp_path, rows), seed=0)


@pytest.fixture(params=["jsonl", "parquet"])
def ten_rows(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    rows = [{"prompt": f"{number}="} for number in range(10)]
    if request.param == "jsonl":
        return JsonlSource(jsonl(tmp_path, *rows), seed=3)
    return ParquetSource(parquet(tmp_path, rows), seed=3)


def test_an_epoch_has_every_row_once_in_an_order_of_its_own(ten_rows: Source) -> None:
    epochs = [[row.row for row in ten_rows.rows(epoch, 0)] for epoch in range(3)]
    assert ten_rows.num_rows == 10
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_any_position_of_an_epoch_is_found_again(ten_rows: Source) -> None:
    whole = list(ten_rows.rows(1, 0))
    assert all(row.messages[0].content == f"{row.row}=" for row in whole)
    for start in range(11):
        assert list(ten_rows.rows(1, start)) == whole[start:]
    assert list(islice(ten_rows.rows(2, 0), 3)) != whole[:3]


def test_an_endless_environment_goes_on_at_any_row() -> None:
    source = EnvironmentSource(load_environment("sort_digits"), split="train", seed=7)
    assert source.num_rows is None
    whole = list(islice(source.rows(0, 0), 30))
    assert list(islice(source.rows(0, 20), 10)) == whole[20:]
    assert source.dataset.startswith("sort_digits/train@")
    assert whole[3].prompt_id == f"{source.dataset}/3"
    assert len({row.prompt_id for row in whole}) == 30


def test_a_small_environment_is_shuffled_and_keeps_its_rows_names() -> None:
    source = EnvironmentSource(
        load_environment("word_count", {"word_count": Declaration(options={"num_examples": "20"})}),
        split="train",
        seed=0,
    )
    assert source.num_rows == 20
    epochs = [list(source.rows(epoch, 0)) for epoch in range(2)]
    assert [row.row for row in epochs[0]] != [row.row for row in epochs[1]]
    answers = [{row.prompt_id: row.reference_answer for row in epoch} for epoch in epochs]
    assert answers[0] == answers[1]
    assert answers[0][f"{source.dataset}/0"] == "45"


class Slow:
    """Tasks that take long to make, so that it names them itself, and counts how many it had to make."""

    name = "slow"
    rubric = Unruly.rubric
    sampling = Sampling()

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.num_made = 0

    def task_set(self, split: Split, seed: int) -> TaskSet:
        """See `TaskSet`."""
        return TaskSet(f"slow/{split}@{seed}", self.size)

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """See `Environment.tasks`."""
        for row in count() if self.size is None else range(self.size):
            self.num_made += 1
            yield Task(task_id=str(row), messages=(Message(role="user", content=f"{row}="),))


@pytest.mark.parametrize("size", [None, 1_000_000])
def test_an_environment_that_names_its_tasks_makes_only_those_that_are_asked(size: int | None) -> None:
    slow = Slow(size)
    source = EnvironmentSource(slow, split="train", seed=3)
    assert (source.dataset, source.num_rows, slow.num_made) == ("slow/train@3", None, 1)
    assert [row.prompt_id for row in islice(source.rows(0, 2), 3)] == [f"slow/train@3/{row}" for row in (2, 3, 4)]
    assert slow.num_made == 1 + 5


def test_a_small_one_that_names_its_tasks_is_shuffled_as_any_other() -> None:
    source = EnvironmentSource(Slow(20), split="train", seed=3)
    assert (source.dataset, source.num_rows) == ("slow/train@3", 20)
    orders = [[row.row for row in source.rows(epoch, 0)] for epoch in range(2)]
    assert [sorted(order) for order in orders] == [list(range(20))] * 2
    assert orders[0] != orders[1]


def test_an_environment_without_tasks_or_whose_tasks_raise_is_refused_with_the_reason() -> None:
    for environment, split, why in (
        (Slow(0), "train", "slow has no task in its split 'train'"),
        (Unruly(), "evaluate", "unruly has no task in its split 'evaluate'"),
        (TasksUnreadable(), "train", "unruly raised OSError while giving .* no disk"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            EnvironmentSource(environment, split=split, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "source=environment needs `environment`"),
        ({"source": "jsonl"}, "source=jsonl needs `path`"),
        ({"environment": "sort_digits", "purpose": "serve"}, "set `epochs` or `num_prompts`"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ProducerSettings(run="demo", **fields)


def test_an_unknown_environment_is_a_setting_to_change() -> None:
    with pytest.raises(ConfigurationError, match="session, sort_digits, structured_output, word_count"):
        build_source(ProducerSettings(run="demo", environment="sort_letters"))


def test_an_agent_that_no_generator_would_know_is_a_setting_to_change() -> None:
    settings = ProducerSettings(run="demo", environment="sort_digits", agent=AgentChoice(name="debate"))
    with pytest.raises(
        ConfigurationError, match="'debate' is not one of the agents of this run: reasoning_cache, single_turn, tools;"
    ):
        build_source(settings)
    build_source(settings.model_copy(update={"agents": {"debate": Declaration(path="tests.unit.test_agents.Debate")}}))


def test_sampling_comes_from_the_environment_unless_it_is_set() -> None:
    settings = ProducerSettings(run="demo", environment="sort_digits")
    assert sampling_of(settings).max_tokens == 12
    assert sampling_of(settings.model_copy(update={"sampling": Sampling(max_tokens=5)})).max_tokens == 5
