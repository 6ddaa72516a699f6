"""Problems of a scored file are divided as section 8 of the formats says: rows D1 to D4, D6, D7 and P13."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollstream.offline.difficulty.filtering import filter_difficulty
from rollstream.offline.difficulty.report import FilterReport
from rollstream.offline.options import DifficultyOptions, Strategy
from rollstream.schemas.errors import ConfigurationError
from tests.harness.late import Late

pd = Late("pandas")

GSM8K, DAPO = "openai/gsm8k", "math_dapo"


def rows_of(problem: int, rewards: Sequence[Any], *, source: str = GSM8K, **fields: Any) -> list[dict[str, Any]]:
    """The rows of one problem, one a reward."""
    return [
        {
            "prompt": f"problem {problem}", "response": f"answer {index}", "sample_idx": index, "data_idx": problem,
            "original_data_source": source, "original_ground_truth": "1", "reward": reward, **fields,
        }
        for index, reward in enumerate(rewards)
    ]  # fmt: skip


def filtered(folder: Path, rows: Sequence[dict[str, Any]], strategy: Strategy, **options: Any) -> FilterReport:
    path = folder / "scored.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return filter_difficulty(
        DifficultyOptions(data_path=path, output_dir=folder / "out", bucketing_strategy=strategy, **options)
    )


def metrics(folder: Path, strategy: Strategy) -> dict[int, dict[str, Any]]:
    """The problems' lines by `data_idx`."""
    lines = json.loads((folder / "out" / f"difficulty_metrics_{strategy}.json").read_text())
    return {line["data_idx"]: line for line in lines}


def buckets(folder: Path, strategy: Strategy) -> list[str]:
    return [line["difficulty_bucket"] for _, line in sorted(metrics(folder, strategy).items())]


def bucket_rows(folder: Path, strategy: Strategy) -> dict[str, list[dict[str, Any]]]:
    return {
        path.name.removeprefix("rollouts_").removesuffix(f"_{strategy}.jsonl"): [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in sorted((folder / "out").glob(f"rollouts_*_{strategy}.jsonl"))
    }


def test_percentile_puts_25_of_100_distinct_problems_into_each_bucket(tmp_path: Path) -> None:
    rows = [row for problem in range(100) for row in rows_of(problem, [problem / 100, problem / 100])]
    report = filtered(tmp_path, rows, Strategy.PERCENTILE)
    assert dict(report.totals.counts) == {"easy": 25, "medium": 25, "hard": 25, "very_hard": 25}
    found = metrics(tmp_path, Strategy.PERCENTILE)
    assert [found[problem]["difficulty_bucket"] for problem in (0, 24, 25, 50, 74, 75, 99)] == [
        "very_hard", "very_hard", "hard", "medium", "medium", "easy", "easy"
    ]  # fmt: skip


def test_rewards_of_0_and_1_alone_leave_equal_problems_together(tmp_path: Path) -> None:
    solved = [row for problem in range(4) for row in rows_of(problem, [1, 1])]
    never = [row for problem in range(4, 7) for row in rows_of(problem, [0, 0])]
    mixed = [row for problem in range(7, 10) for row in rows_of(problem, [0, 1])]
    filtered(tmp_path, [*solved, *never, *mixed], Strategy.PERCENTILE)
    assert buckets(tmp_path, Strategy.PERCENTILE) == ["easy"] * 4 + ["very_hard"] * 3 + ["hard"] * 3


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.PASS_RATE, ["easy", "easy", "medium", "hard", "hard", "very_hard"]),
        (Strategy.MEAN_REWARD, ["easy", "easy", "medium", "hard", "very_hard", "very_hard"]),
    ],
)
def test_golden_table_of_five_samples(strategy: Strategy, expected: list[str], tmp_path: Path) -> None:
    rows = [row for passes in range(6) for row in rows_of(passes, [0] * passes + [1] * (5 - passes))]
    filtered(tmp_path, rows, strategy)
    assert buckets(tmp_path, strategy) == expected
    line = metrics(tmp_path, strategy)[1]
    expected_line = {
        "num_samples": 5, "num_passed": 4, "pass_rate": 80.0, "mean_reward": 0.8, "std_reward": pytest.approx(0.4),
        "difficulty_score": pytest.approx(0.32), "min_reward": 0, "max_reward": 1, "mean_normalized": 0.8,
        "pass_rate_low": pytest.approx(37.55, abs=0.01), "pass_rate_high": pytest.approx(96.38, abs=0.01),
    }  # fmt: skip
    assert {name: line[name] for name in expected_line} == expected_line


def test_adaptive_finds_four_clusters(tmp_path: Path) -> None:
    rewards = [0.95, 0.97, 0.7, 0.72, 0.3, 0.31, 0.01, 0.0]
    rows = [row for problem, reward in enumerate(rewards) for row in rows_of(problem, [reward] * 2)]
    filtered(tmp_path, rows, Strategy.ADAPTIVE)
    assert buckets(tmp_path, Strategy.ADAPTIVE) == [
        name for name in ("easy", "medium", "hard", "very_hard") for _ in range(2)
    ]


def test_adaptive_with_three_different_scores_divides_as_mean_reward_and_says_so(tmp_path: Path) -> None:
    rows = [row for problem, reward in enumerate([1, 0.5, 0]) for row in rows_of(problem, [reward] * 2)]
    report = filtered(tmp_path, rows, Strategy.ADAPTIVE)
    assert buckets(tmp_path, Strategy.ADAPTIVE) == ["easy", "medium", "very_hard"]
    assert report.notes == ["3 different scores make no four clusters: divided as mean_reward does"]


def test_each_source_has_its_own_range_and_threshold(tmp_path: Path) -> None:
    rows = [
        *rows_of(0, [0, 0, 1, 1]),
        *rows_of(1, [-1, -1, 1, 1], source=DAPO),
        *rows_of(2, [-1, -1, -1, 1], source=DAPO),
        *rows_of(3, [0.5, 0.99, 0.2, 0.7]),
        *rows_of(4, [0, 1], source="nobody's"),
    ]
    filtered(tmp_path, rows, Strategy.MEAN_REWARD)
    found = metrics(tmp_path, Strategy.MEAN_REWARD)
    assert [(line["mean_reward"], line["mean_normalized"], line["pass_rate"]) for line in found.values()] == [
        (0.5, 0.5, 50.0), (0.0, 0.5, 50.0), (-0.5, 0.25, 25.0), (pytest.approx(0.5975), pytest.approx(0.5975), 0.0),
        (0.5, 0.5, None),
    ]  # fmt: skip
    assert buckets(tmp_path, Strategy.MEAN_REWARD) == ["medium", "medium", "hard", "medium", "medium"]


def test_the_columns_of_analyze_rewards_count_before_the_data_source(tmp_path: Path) -> None:
    # `math_dapo` rows that --reward_fn math scored: 0 and 1, not -1 and 1.
    rows = [
        *rows_of(0, [0, 0], source=DAPO, reward_normalized=0.0, passed=False),
        *rows_of(1, [1, 1], source=DAPO, reward_normalized=1.0, passed=True),
        *rows_of(2, [7, 9], source=DAPO, reward_normalized=None, passed=None),
    ]
    filtered(tmp_path, rows, Strategy.MEAN_REWARD)
    found = metrics(tmp_path, Strategy.MEAN_REWARD)
    assert [(line["mean_normalized"], line["pass_rate"]) for line in found.values()] == [
        (0.0, 0.0), (1.0, 100.0), (8.0, None)
    ]  # fmt: skip


def test_a_pass_threshold_on_the_command_line_counts_for_all(tmp_path: Path) -> None:
    rows = [*rows_of(0, [0.4, 0.6], passed=False), *rows_of(1, [0.5, 0.5], source="nobody's")]
    filtered(tmp_path, rows, Strategy.PASS_RATE, pass_threshold=0.5)
    assert [line["pass_rate"] for line in metrics(tmp_path, Strategy.PASS_RATE).values()] == [50.0, 100.0]


def test_pass_rate_without_any_threshold_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="say the smallest reward that passes with --pass_threshold"):
        filtered(tmp_path, rows_of(0, [0, 1], source="nobody's"), Strategy.PASS_RATE)


def test_rows_without_a_reward_are_no_failures(tmp_path: Path) -> None:
    failed = {"reward_failure": "timeout: scoring this sample took longer than 5 s"}
    rows = [
        *rows_of(0, [1, 1]),
        *rows_of(0, [None] * 6, **failed),
        *rows_of(1, [1, 0]),
        *rows_of(2, [None] * 3),
        *rows_of(3, ["1.0", [1], {"score": 1}]),
    ]
    report = filtered(tmp_path, rows, Strategy.PASS_RATE)
    found = metrics(tmp_path, Strategy.PASS_RATE)
    assert (found[0]["pass_rate"], found[0]["num_samples"], found[0]["num_unscored"]) == (100.0, 2, 6)
    assert buckets(tmp_path, Strategy.PASS_RATE) == ["easy", "medium", "unknown", "unknown"]
    assert dict(report.unscored.counts) == {
        "timeout": 6, "no_reward": 3, "bad_reward": 3
    }  # fmt: skip
    assert [found[2][name] for name in ("mean_reward", "pass_rate", "pass_rate_low", "num_passed")] == [None] * 4


def test_one_sample_is_unknown_and_its_interval_says_why(tmp_path: Path) -> None:
    filtered(tmp_path, [*rows_of(0, [0]), *rows_of(1, [0, 0])], Strategy.PASS_RATE)
    assert buckets(tmp_path, Strategy.PASS_RATE) == ["unknown", "very_hard"]
    line = metrics(tmp_path, Strategy.PASS_RATE)[0]
    assert (line["pass_rate_low"], line["pass_rate_high"]) == (0.0, pytest.approx(79.35, abs=0.01))
    filtered(tmp_path, [*rows_of(0, [0]), *rows_of(1, [0, 0])], Strategy.PASS_RATE, min_samples=1)
    assert buckets(tmp_path, Strategy.PASS_RATE) == ["very_hard", "very_hard"]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_order_of_the_file_changes_nothing(strategy: Strategy, tmp_path: Path) -> None:
    chooser = random.Random(7)
    rows = [
        row
        for problem in range(60)
        for row in rows_of(problem, [round(chooser.random(), 3) for _ in range(chooser.randint(1, 9))])
    ]
    filtered(tmp_path, rows, strategy)
    before = (tmp_path / "out" / f"difficulty_metrics_{strategy}.json").read_bytes()
    by_bucket = {name: len(found) for name, found in bucket_rows(tmp_path, strategy).items()}
    chooser.shuffle(rows)
    filtered(tmp_path, rows, strategy)
    assert (tmp_path / "out" / f"difficulty_metrics_{strategy}.json").read_bytes() == before
    assert {name: len(found) for name, found in bucket_rows(tmp_path, strategy).items()} == by_bucket


@pytest.mark.parametrize("strategy", list(Strategy))
def test_counts_add_up_and_each_row_names_its_problem(strategy: Strategy, tmp_path: Path) -> None:
    rows = [row for problem in range(20) for row in rows_of(problem, [problem % 5 / 4] * (1 + problem % 3))]
    filtered(tmp_path, rows, strategy)
    summary = json.loads((tmp_path / "out" / f"summary_{strategy}.json").read_text())
    assert (summary["total_problems"], summary["num_rows"], summary["num_scored_rows"]) == (20, 39, 39)
    assert sum(summary["bucket_distribution"].values()) == 20
    found = bucket_rows(tmp_path, strategy)
    assert sorted(found) == sorted(name for name, count in summary["bucket_distribution"].items() if count)
    assert {name: len(some) for name, some in found.items()} == {
        name: statistics["num_rows"] for name, statistics in summary["bucket_statistics"].items()
    }
    problems = {line["problem_id"]: line for line in metrics(tmp_path, strategy).values()}
    for name, some in found.items():
        for row in some:
            line = problems[row["problem_id"]]
            assert (line["difficulty_bucket"], line["data_idx"]) == (row["difficulty_bucket"], row["data_idx"])
            assert row["difficulty_bucket"] == name
    originals = [
        {k: v for k, v in row.items() if k not in ("problem_id", "difficulty_bucket")}
        for some in found.values()
        for row in some
    ]
    assert sorted(map(json.dumps, originals)) == sorted(map(json.dumps, rows))


def test_problems_with_the_same_prompt_are_one_and_other_ground_truths_make_others(tmp_path: Path) -> None:
    rows = [
        *rows_of(5, [1]),
        *({**row, "data_idx": 3} for row in rows_of(5, [0])),
        *rows_of(5, [0, 0], original_ground_truth="2"),
    ]
    filtered(tmp_path, rows, Strategy.MEAN_REWARD)
    found = metrics(tmp_path, Strategy.MEAN_REWARD)
    assert {idx: (line["num_samples"], line["mean_reward"]) for idx, line in found.items()} == {
        3: (2, 0.5),
        5: (2, 0.0),
    }


def test_a_column_can_say_which_problem_a_row_is_of(tmp_path: Path) -> None:
    rows = [{**row, "uid": "a" if row["data_idx"] < 2 else "b"} for n in range(4) for row in rows_of(n, [1])]
    report = filtered(tmp_path, [*rows, rows_of(9, [1])[0]], Strategy.MEAN_REWARD, id_column="uid")
    assert report.totals.counts.total() == 2
    assert report.bad_rows.lines() == [
        "1 x no_problem, e.g. scored.jsonl line 5: no_problem: its column 'uid' is absent or null, so it belongs to no "
        "problem"
    ]


def test_parquet_with_numpy_lists_gives_the_same_problems_as_jsonl(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    rows = [{**row, "prompt": chat} for row in rows_of(0, [1, 0])] + rows_of(1, [1, 1], prompt=[chat[1]])
    filtered(tmp_path, rows, Strategy.PASS_RATE)
    frame = pd.DataFrame(rows)
    frame.loc[0, "reward"] = float("nan")
    frame.to_parquet(tmp_path / "scored.parquet")
    assert pd.read_parquet(tmp_path / "scored.parquet")["prompt"][0].tolist() == chat
    out = tmp_path / "parquet"
    options = DifficultyOptions(
        data_path=tmp_path / "scored.parquet", output_dir=out, bucketing_strategy=Strategy.PASS_RATE
    )
    report = filter_difficulty(options)
    ids = {line["data_idx"]: line["problem_id"] for line in metrics(tmp_path, Strategy.PASS_RATE).values()}
    table = pd.read_parquet(out / "difficulty_metrics_pass_rate.parquet").set_index("data_idx")
    assert table["problem_id"].to_dict() == ids
    assert table["difficulty_bucket"].to_dict() == {0: "unknown", 1: "easy"}
    assert dict(report.unscored.counts) == {"no_reward": 1}
    easy = pd.read_parquet(out / "rollouts_easy_pass_rate.parquet")
    assert easy["problem_id"].unique().tolist() == [ids[1]]


def test_files_of_an_earlier_run_do_not_stay_beside_those_of_a_new_one(tmp_path: Path) -> None:
    filtered(tmp_path, [*rows_of(0, [1, 1]), *rows_of(1, [0, 0])], Strategy.PASS_RATE)
    filtered(tmp_path, rows_of(0, [1, 1]), Strategy.PASS_RATE)
    assert list(bucket_rows(tmp_path, Strategy.PASS_RATE)) == ["easy"]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_files_of_an_earlier_run_on_a_file_of_the_other_format_do_not_stay_either(tmp_path: Path) -> None:
    filtered(tmp_path, [*rows_of(0, [1, 1]), *rows_of(1, [0, 0])], Strategy.PASS_RATE)
    out, scored = tmp_path / "out", tmp_path / "scored.parquet"
    (out / "mine.jsonl").touch()
    pd.DataFrame(rows_of(0, [1, 1])).to_parquet(scored)
    filter_difficulty(DifficultyOptions(data_path=scored, output_dir=out, bucketing_strategy=Strategy.PASS_RATE))
    assert sorted(path.name for path in out.iterdir()) == [
        "difficulty_metrics_pass_rate.json", "difficulty_metrics_pass_rate.parquet", "mine.jsonl",
        "rollouts_easy_pass_rate.parquet", "summary_pass_rate.json",
    ]  # fmt: skip


def test_a_file_that_this_run_would_replace_is_refused(tmp_path: Path) -> None:
    filtered(tmp_path, [*rows_of(0, [1, 1]), *rows_of(1, [0, 0])], Strategy.PASS_RATE)
    own = tmp_path / "out" / "rollouts_easy_pass_rate.jsonl"
    before = own.read_bytes()
    with pytest.raises(ConfigurationError, match="name another place with --output_dir"):
        filter_difficulty(
            DifficultyOptions(data_path=own, output_dir=tmp_path / "out", bucketing_strategy=Strategy.PASS_RATE)
        )
    assert own.read_bytes() == before


def test_a_file_without_rewards_or_rows_says_what_to_do(tmp_path: Path) -> None:
    unscored = [{"prompt": "p", "response": "r"}]
    with pytest.raises(ConfigurationError, match="no column `reward`: score it first, with `analyze-rewards`"):
        filtered(tmp_path, unscored, Strategy.PERCENTILE)
    with pytest.raises(ConfigurationError, match="is empty"):
        filtered(tmp_path, [], Strategy.PERCENTILE)
    with pytest.raises(ConfigurationError, match="none of the 2 rows can be used: 2 x no_problem"):
        filtered(tmp_path, [{"reward": 1}, {"reward": 0}], Strategy.PERCENTILE)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_in_which_no_row_is_scored_leaves_every_problem_unknown(tmp_path: Path) -> None:
    report = filtered(tmp_path, rows_of(0, [None, None]), Strategy.PERCENTILE)
    assert dict(report.totals.counts) == {"unknown": 1}
    assert report.notes == ["no problem has 2 scored samples, so all are unknown"]


def test_bad_lines_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    good = [json.dumps(row) for row in rows_of(0, [1, 1])]
    path.write_text("\n".join([good[0], "{broken", "[1, 2]", good[1], "\x00\x00"]))
    report = filter_difficulty(
        DifficultyOptions(data_path=path, output_dir=tmp_path / "out", bucketing_strategy=Strategy.PASS_RATE)
    )
    assert (report.num_rows, dict(report.bad_rows.counts), dict(report.totals.counts)) == (
        5, {"unreadable": 3}, {"easy": 1}
    )  # fmt: skip


def test_a_reward_that_is_true_or_far_out_of_bounds_is_no_crash(tmp_path: Path) -> None:
    filtered(tmp_path, rows_of(0, [True, False, 1e300, 10**400, "NaN"]), Strategy.MEAN_REWARD)
    line = metrics(tmp_path, Strategy.MEAN_REWARD)[0]
    assert (line["num_samples"], line["mean_reward"], line["num_unscored"]) == (2, 0.5, 3)


@pytest.mark.parametrize("value", [10**400, "0.5", [1]])
def test_a_normalized_reward_that_is_no_number_is_counted_and_the_other_samples_go_on(
    value: Any, tmp_path: Path
) -> None:
    rows = [*rows_of(0, [1, 1], reward_normalized=0.5), *rows_of(0, [1], reward_normalized=value)]
    report = filtered(tmp_path, rows, Strategy.MEAN_REWARD)
    assert report.unscored.counts == {"bad_reward": 1}
    [line] = metrics(tmp_path, Strategy.MEAN_REWARD).values()
    assert (line["num_samples"], line["num_unscored"], line["mean_normalized"]) == (2, 1, 0.5)


def test_strange_values_of_parquet_are_taken_or_counted(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": pa.array(["p", "p", None]),
            "reward": pa.array([float("inf"), 1.0, 0.0]),
            "data_idx": pa.array([1.5, 2.0, None]),
            "original_data_source": pa.array([b"\xff", b"ok", None]),
        }
    )
    pq.write_table(table, tmp_path / "odd.parquet")
    report = filter_difficulty(DifficultyOptions(data_path=tmp_path / "odd.parquet", output_dir=tmp_path / "out"))
    assert (report.num_rows, report.bad_rows.total, report.unscored.total) == (3, 1, 1)
