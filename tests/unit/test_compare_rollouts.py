"""Two files of rollouts of the same examples, before and after training (W11)."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.cli.compare_rollouts import command
from rollstream.offline.compare.comparison import Comparison, compare
from rollstream.offline.options import CompareOptions
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError
from tests.harness.late import Late

pd = Late("pandas")


def a_row(question: str, reward: float | None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": question}]
    return {"prompt": messages, "completion": [{"role": "assistant", "content": "2"}], "reward": reward, **fields}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    kind: Any = {".jsonl": "jsonl", ".parquet": "parquet"}.get(path.suffix, "hf")
    with write_rows(path, kind) as writer:
        for row in rows:
            writer.write(row)
    return path


def compared(before: Path, after: Path, **options: Any) -> Comparison:
    return compare(CompareOptions(before=before, after=after, **options))


def two_files(tmp_path: Path) -> tuple[Path, Path]:
    before = [a_row("a", 0.25), a_row("b", 1.3), a_row("c", 0.0), a_row("gone", 1.0), a_row("b", 0.2)]
    after = [a_row("c", 0.5), a_row("a", 1.3), a_row("new", 1.3), a_row("b", 0.25), a_row("lost", None)]
    return written(tmp_path / "before.jsonl", before), written(tmp_path / "after", after)


def test_examples_are_matched_by_what_is_asked_and_each_has_its_delta(tmp_path: Path) -> None:
    found = compared(*two_files(tmp_path))
    # b has two rollouts before, 1.3 and 0.2: on average 0.75.
    assert [(one.label, one.before, one.after) for one in found.deltas] == [
        ("b", 0.75, 0.25),
        ("c", 0.0, 0.5),
        ("a", 0.25, 1.3),
    ]
    assert found.mean_delta == pytest.approx((-0.5 + 0.5 + 1.05) / 3)
    assert (found.matched_by, found.num_matched) == ("prompt", 3)


def test_the_mean_delta_equals_pandas_on_the_files(tmp_path: Path) -> None:
    rows = [[{"example_id": n % 40, "reward": ((n * seed) % 13) / 10} for n in range(100)] for seed in (5, 11)]
    paths = [written(tmp_path / f"{name}.parquet", one) for name, one in zip("ab", rows, strict=True)]
    means = [pd.read_parquet(path).groupby("example_id")["reward"].mean() for path in paths]
    found = compared(*paths, limit=40)
    assert found.matched_by == "example_id"
    assert found.mean_delta == pytest.approx((means[1] - means[0]).mean())
    assert {int(one.label): one.delta for one in found.deltas} == pytest.approx((means[1] - means[0]).to_dict())


def test_a_prompt_that_comes_twice_in_both_files_is_two_examples(tmp_path: Path) -> None:
    before = [a_row("a", 1.0), a_row("b", 0.0), a_row("a", 0.5), a_row("once", 0.0)]
    after = [a_row("a", 1.0), a_row("a", 0.0), a_row("b", 1.0), a_row("once", 0.0), a_row("once", 1.0)]
    paths = written(tmp_path / "before.jsonl", before), written(tmp_path / "after.parquet", after)
    found = compared(*paths, output=tmp_path / "all.jsonl")
    assert [(one.label, one.before, one.after) for one in found.deltas] == [
        ("a", 0.5, 0.0),
        ("a", 1.0, 1.0),
        ("once", 0.0, 0.5),
        ("b", 0.0, 1.0),
    ]
    assert (found.num_matched, found.mean_before, found.mean_after) == (4, 0.375, 0.625)
    keys = [json.loads(line)["key"] for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert keys[0] == f"{keys[1]}-2"
    assert len(set(keys)) == 4


def test_the_samples_of_one_example_are_told_by_their_index_and_averaged(tmp_path: Path) -> None:
    rows = [a_row("a", number % 2, sample_idx=sample) for number in range(4) for sample in range(8)]
    rows += [a_row("b", 1.0, sample_idx=sample) for sample in range(8)]
    paths = written(tmp_path / "before.jsonl", rows), written(tmp_path / "after.parquet", rows)
    found = compared(*paths)
    assert (found.num_matched, found.mean_before, found.mean_delta) == (5, 0.6, 0.0)
    assert [one.before for one in found.deltas if one.label == "a"] == [0, 1, 0, 1]


def test_what_is_in_one_file_only_or_has_no_reward_is_counted_and_listed(tmp_path: Path) -> None:
    found = compared(*two_files(tmp_path))
    assert (found.after.num_missing, [one.label for one in found.after.missing]) == (1, ["gone"])
    assert (found.before.num_missing, [one.label for one in found.before.missing]) == (1, ["new"])
    assert (found.before.rewards.num_without, found.after.rewards.num_without) == (0, 1)


def test_text_and_one_user_message_ask_the_same_and_parquets_nulls_change_nothing(tmp_path: Path) -> None:
    before = written(tmp_path / "a.jsonl", [{"prompt": "2+2=", "reward": 0.0}])
    asked = [{"role": "user", "content": "2+2="}]
    other = [{"role": "user", "content": "3+3=", "name": "ann"}]
    after = written(tmp_path / "b.parquet", [{"prompt": asked, "reward": 1.0}, {"prompt": other, "reward": 1.0}])
    assert compared(before, after).num_matched == 1


def test_ids_are_used_only_where_both_files_have_them(tmp_path: Path) -> None:
    before = written(tmp_path / "a.jsonl", [a_row("a", 0.0, example_id=0), a_row("b", 1.0, example_id=1)])
    after = written(tmp_path / "b.jsonl", [a_row("b", 1.0), a_row("a", 1.0)])
    assert compared(before, after).matched_by == "prompt"
    with pytest.raises(ConfigurationError, match="no example in common"):
        compared(before, after, by="example_id")


def test_all_deltas_are_written_and_as_many_as_wanted_shown(tmp_path: Path) -> None:
    output = tmp_path / "deltas.parquet"
    found = compared(*two_files(tmp_path), limit=1, output=output)
    assert len(found.deltas) == 1
    frame = pd.read_parquet(output)
    assert list(frame.columns) == ["example", "key", "before", "after", "delta"]
    assert frame["delta"].mean() == pytest.approx(found.mean_delta)
    with pytest.raises(ConfigurationError, match=r"\.jsonl or \.parquet"):
        compared(*two_files(tmp_path), output=tmp_path / "deltas.csv")


def test_the_command_prints_the_table_and_what_does_not_count(tmp_path: Path) -> None:
    ended = CliRunner().invoke(command, [str(path) for path in two_files(tmp_path)])
    assert ended.exit_code == 0, ended.output
    assert "3 examples, matched by prompt: mean reward 0.333 before, 0.683 after, mean delta +0.350" in ended.output
    assert "1 examples are missing that have a reward before:\n   gone (" in ended.output
    assert "after (after): 1 rows have no reward" in ended.output


def test_missing_examples_that_begin_alike_are_told_apart_as_in_the_table(tmp_path: Path) -> None:
    rows = [a_row(f"{'word ' * 40}{number}", 1.0) for number in range(3)]
    before, after = written(tmp_path / "before.jsonl", rows), written(tmp_path / "after.jsonl", rows[:1])
    ended = CliRunner().invoke(command, [str(before), str(after)])
    _, _, listed = ended.output.partition("2 examples are missing that have a reward before:\n")
    keys = [one.key[:8] for one in compared(before, after).after.missing]
    assert [line.rpartition("... ")[2] for line in listed.splitlines()] == [f"({key})" for key in keys]
    assert len(set(keys)) == 2
    ids = [{"example_id": number, "reward": 1.0} for number in range(3)]
    before, after = written(tmp_path / "before.jsonl", ids), written(tmp_path / "after.jsonl", ids[:1])
    assert CliRunner().invoke(command, [str(before), str(after)]).output.endswith("before:\n   1\n   2\n")


def test_rows_that_can_not_be_read_or_name_no_example_are_counted_and_listed(tmp_path: Path) -> None:
    before, after = two_files(tmp_path)
    with before.open("a") as stream:
        stream.write('{"prompt": \n{"reward": 1.0}\n')
    found = compared(before, after)
    assert found.before.num_bad == 2
    assert found.before.bad[1] == "before.jsonl line 7: it has no prompt"
    assert found.before.bad[0].startswith("before.jsonl line 6: it is not valid JSON")
    assert found.before.rewards.num == 5


def test_nulls_that_parquet_adds_within_tool_calls_change_nothing(tmp_path: Path) -> None:
    def asked(**function: str) -> list[dict[str, Any]]:
        call = {"id": "1", "function": {"name": "count", **function}}
        return [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]

    rows = [{"prompt": asked(), "reward": 0.0}, {"prompt": asked(strict="yes"), "reward": 0.0}]
    paths = [written(tmp_path / name, rows) for name in ("a.jsonl", "b.parquet")]
    assert compared(*paths).num_matched == 2


DEEP = "[" * 700 + "]" * 700
"""JSON reads it; Python's stack does not hold a function that calls itself so often."""


def test_a_prompt_that_is_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    before, after = two_files(tmp_path)
    with before.open("a") as stream:
        stream.write(f'{{"prompt": {DEEP}, "reward": 1.0}}\n')
    found = compared(before, after)
    assert found.before.bad == ["before.jsonl line 6: its JSON is nested too deeply"]
    assert found.num_matched == 3


def test_the_command_prints_json_for_programs(tmp_path: Path) -> None:
    ended = CliRunner().invoke(command, [*(str(path) for path in two_files(tmp_path)), "--json"])
    found = json.loads(ended.output)
    assert found["mean_delta"] == pytest.approx(0.35)
    [gone] = found["after"]["first_missing"]
    assert (gone["label"], len(gone["key"])) == ("gone", 32)
    assert [one["delta"] for one in found["examples"]] == pytest.approx([-0.5, 0.5, 1.05])
