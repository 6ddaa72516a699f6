"""Runs that the verifiers library saved, in and out (W12), and what Prime-RL's SFT reads.

The run below is made up by hand from the fields that verifiers writes; no file of a public run is used.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.cli.verifiers import command
from rollstream.offline.convert.verifiers_runs import Converted, export_run, import_run
from rollstream.offline.options import ExportOptions
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from rollstream.rows.write import rewrite_rows, write_rows
from rollstream.schemas.errors import ConfigurationError
from tests.harness.late import Late

pd = Late("pandas")
datasets = Late("datasets")

TIMING = {"start_time": 1766016000.25, "setup": 0.01, "generation": 1.5, "scoring": 0.002, "model": 1.4, "env": 0.1}
CALL = {"id": "call-1", "type": "function", "function": {"name": "count", "arguments": '{"text": "word"}'}}


def a_result(example_id: int, answer: int, given: str, reward: float, **fields: Any) -> dict[str, Any]:
    """A row of results.jsonl; metrics are there twice, as verifiers writes them."""
    exact = float(given == str(answer))
    metrics = {"exact_match_reward": exact, "format_reward": 1.0, "partial_credit_reward": exact, "num_turns": 1}
    return {
        "example_id": example_id,
        "prompt": [
            {"role": "system", "content": "Answer in tags."},
            {"role": "user", "content": f"Count the number of words in the following text:\n\n{'word ' * answer}"},
        ],
        "completion": [{"role": "assistant", "content": f"<word_count>\n{given}\n</word_count>"}],
        "answer": str(answer),
        "info": {"text": "word " * answer, "word_count": answer},
        "reward": reward,
        "error": None,
        "timing": TIMING,
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "metrics": metrics,
        "tool_defs": [],
        "token_usage": {"input_tokens": 61.0, "output_tokens": 12.0, "final_input_tokens": 61.0},
        **metrics,
        **fields,
    }


def the_results() -> list[dict[str, Any]]:
    """Two samples each of three examples: with a tool, without answer and info, and one that an error ended."""
    tool_turns = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "6", "tool_call_id": "call-1"},
        {"role": "assistant", "content": "<word_count>\n6\n</word_count>"},
    ]
    error = {"error": "ModelError", "error_chain_repr": "ModelError(timeout)", "error_chain_str": "ModelError: timeout"}
    failed = a_result(2, 22, "", 0.0, completion=None, error=error, error_chain="ModelError(timeout)", metrics={})
    for name in ("exact_match_reward", "format_reward", "partial_credit_reward", "num_turns"):
        del failed[name]
    plain = a_result(1, 12, "13", 0.25, prompt="A prompt as text", state={"seen": [1, None, {"a": None}]})
    del plain["answer"], plain["info"]
    return [
        a_result(0, 6, "6", 1.3, completion=tool_turns),
        a_result(0, 6, "5", 0.25),
        plain,
        a_result(1, 12, "12", 1.3),
        failed,
        a_result(2, 22, "20", 0.22, trajectory_note="ünïcode 中"),
    ]


METADATA = {
    "env_id": "word-count",
    "env_args": {"num_examples": 3},
    "model": "anthropic/claude-sonnet",
    "base_url": "http://localhost:8000/v1",
    "num_examples": 3,
    "rollouts_per_example": 2,
    "shuffle": False,
    "sampling_args": {"temperature": 1.0, "max_tokens": None},
    "date": "2026-03-01T12:00:00",
    "time_ms": 4250.5,
    "avg_reward": 0.5533333333333333,
    "avg_metrics": {"format_reward": 1.0},
    "avg_error": 0.16666666666666666,
    "pass_at_k": {"1": 0.3333333333333333, "2": 0.6666666666666666},
    "pass_all_k": {"1": 0.3333333333333333, "2": 0.0},
    "pass_threshold": 0.5,
    "usage": {"input_tokens": 61.0, "output_tokens": 12.0},
    "version_info": {"vf_version": "0.1.9", "env_version": "0.1.0", "vf_commit": None},
    "state_columns": ["state"],
    "path_to_save": "outputs/evals/word-count--anthropic--claude-sonnet/1a2b3c4d",
}


def a_run(directory: Path) -> Path:
    directory.mkdir()
    lines = [json.dumps(result) + "\n" for result in the_results()]
    (directory / "results.jsonl").write_text("".join(lines))
    (directory / "metadata.json").write_text(json.dumps(METADATA))
    return directory


def exported(rollouts: Path, outputs: Path, **options: Any) -> Converted:
    return export_run(ExportOptions(rollouts=rollouts, outputs=outputs, **options))


def results_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.parquet", "rollouts"])
def test_a_run_comes_out_of_each_format_as_it_went_in(tmp_path: Path, name: str) -> None:
    import_run(a_run(tmp_path / "run"), tmp_path / name)
    done = exported(tmp_path / name, tmp_path / "outputs")
    assert done.path == tmp_path / "outputs/evals/word-count--anthropic--claude-sonnet/1a2b3c4d"
    assert results_of(done.path) == the_results()
    assert json.loads((done.path / "metadata.json").read_text()) == METADATA


def test_the_rows_have_our_columns_and_an_error_is_no_reward_of_0(tmp_path: Path) -> None:
    import_run(a_run(tmp_path / "run"), tmp_path / "rollouts.parquet")
    frame = pd.read_parquet(tmp_path / "rollouts.parquet")
    assert list(frame.columns[:4]) == ["example_id", "prompt", "completion", "reward"]
    assert frame["reward"].tolist()[:4] == [1.3, 0.25, 0.25, 1.3]
    assert frame["status"].tolist() == ["completed"] * 4 + ["unresolved", "completed"]
    assert frame["reward"].isna().tolist() == [False] * 4 + [True, False]
    assert frame["failure"][4] == "ModelError: timeout"
    assert frame["exact_match_reward"].tolist()[:2] == [1.0, 0.0]


def exported_after(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], **options: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Results and metadata of the run that is imported, changed and exported again."""
    rollouts = tmp_path / "rollouts.jsonl"
    import_run(a_run(tmp_path / "run"), rollouts)
    rows = change([row.fields for row in open_rows(rollouts) if isinstance(row, ReadRow)])
    rewrite_rows(rollouts, "jsonl", lambda: rows)
    run = exported(rollouts, tmp_path / "outputs", run_id="again", **options).path
    return results_of(run), json.loads((run / "metadata.json").read_text())


def test_a_changed_reward_comes_out_and_the_averages_are_computed_anew(tmp_path: Path) -> None:
    better = {"reward": 1.3, "exact_match_reward": 1.0}
    results, metadata = exported_after(tmp_path, lambda rows: [rows[0], {**rows[1], **better}, *rows[2:]])
    expected = copy.deepcopy(the_results())
    expected[1] |= better
    expected[1]["metrics"]["exact_match_reward"] = 1.0
    assert results == expected
    # 1.3, 1.3, 0.25, 1.3 and 0.22: that an error ended the other sample says nothing about its answer.
    assert (metadata["avg_reward"], metadata["avg_error"]) == pytest.approx((4.37 / 5, 1 / 6))
    assert (metadata["pass_at_k"], metadata["pass_all_k"]) == ({}, {})
    assert metadata["version_info"] == METADATA["version_info"]


def test_as_verifiers_counts_a_failed_sample_is_a_reward_of_0_on_demand(tmp_path: Path) -> None:
    _, metadata = exported_after(tmp_path, lambda rows: [{**rows[0], "reward": 1.0}, *rows[1:]], zero_for_failed=True)
    # 1.0, 0.25, 0.25, 1.3, 0.0 and 0.22: one of example 0 passes, one of example 1, none of example 2.
    assert metadata["avg_reward"] == pytest.approx(3.02 / 6)
    assert metadata["pass_at_k"] == pytest.approx({"1": 1 / 3, "2": 2 / 3})


def test_a_failed_sample_that_got_a_reward_since_counts_with_it(tmp_path: Path) -> None:
    results, metadata = exported_after(tmp_path, lambda rows: [*rows[:4], {**rows[4], "reward": 0.25}, rows[5]])
    assert (results[4]["reward"], results[4]["error"]) == (0.25, None)
    assert (metadata["avg_error"], metadata["avg_reward"]) == pytest.approx((0.0, 3.57 / 6))


def test_rows_that_were_taken_out_change_the_averages_of_the_run(tmp_path: Path) -> None:
    _, metadata = exported_after(tmp_path, lambda rows: [row for row in rows if (row["reward"] or 0) > 1.0])
    assert (metadata["num_examples"], metadata["rollouts_per_example"]) == (2, 1)
    assert metadata["avg_reward"] == pytest.approx(1.3)


@pytest.mark.parametrize("column", ["scoring_failure", "reward_failure"])
def test_an_answer_whose_reward_raised_is_exported_as_unscored_with_the_reason(tmp_path: Path, column: str) -> None:
    rollouts = tmp_path / "rollouts.jsonl"
    row = {"data_idx": 0, "prompt": "2+2=", "response": "4", "status": "completed", "reward": None, column: "crash: no"}
    rewrite_rows(rollouts, "jsonl", lambda: [row])
    [result] = results_of(exported(rollouts, tmp_path / "outputs", env_id="e", model="m").path)
    assert (result["reward"], result["is_completed"]) == (None, True)
    assert result["error"] == {"error": "unscored", "error_chain_repr": "crash: no", "error_chain_str": "crash: no"}


def our_rows(path: Path) -> Path:
    """Four samples of two examples: one without a reward."""
    prompt = [{"role": "user", "content": "2+2="}]
    rewards = [1.3, 0.2, 0.25, None]
    with write_rows(path, "jsonl") as writer:
        for number, reward in enumerate(rewards):
            fields = {
                "data_idx": number // 2,
                "prompt": prompt,
                "completion": None if reward is None else [{"role": "assistant", "content": "4"}],
                "reward": reward,
                "format_reward": None if reward is None else 1.0,
                "answer": "4",
                "temperature": 1.0,
            }
            failed = {"status": "unresolved", "failure": "deadline"} if reward is None else {"status": "completed"}
            writer.write({**fields, **failed})
    return path


def test_our_rollouts_become_a_run_that_viewers_find(tmp_path: Path) -> None:
    name = {"env_id": "word-count", "model": "anthropic/claude-sonnet", "run_id": "first"}
    run = exported(our_rows(tmp_path / "rollouts.jsonl"), tmp_path / "outputs", **name).path
    assert run.relative_to(tmp_path) == Path("outputs/evals/word-count--anthropic--claude-sonnet/first")
    first, *_, failed = results_of(run)
    assert (first["example_id"], first["metrics"], first["format_reward"]) == (0, {"format_reward": 1.0}, 1.0)
    assert (first["error"], first["is_completed"], first["temperature"]) == (None, True, 1.0)
    assert (failed["reward"], failed["is_completed"]) == (None, False)
    assert failed["error"]["error_chain_str"] == "deadline"
    metadata = json.loads((run / "metadata.json").read_text())
    assert (metadata["num_examples"], metadata["rollouts_per_example"]) == (2, 2)
    assert metadata["avg_reward"] == pytest.approx(1.75 / 3)
    assert metadata["avg_error"] == 0.25
    # One sample neither passed nor failed.
    assert (metadata["pass_at_k"], metadata["pass_all_k"]) == ({}, {})
    assert metadata["state_columns"] == ["data_idx", "temperature"]


def test_a_reward_of_0_for_failed_rows_is_written_only_on_demand(tmp_path: Path) -> None:
    rollouts = our_rows(tmp_path / "rollouts.jsonl")
    run = exported(rollouts, tmp_path / "outputs", env_id="word-count", model="tiny", zero_for_failed=True).path
    assert results_of(run)[3]["reward"] == 0.0
    # One of four passes then: example 0 has 1 of 2, example 1 has 0 of 2.
    assert json.loads((run / "metadata.json").read_text())["pass_at_k"] == {"1": 0.25, "2": 0.5}


@pytest.mark.parametrize(
    "bad", [{"run_id": ".."}, {"run_id": "a/b"}, {"model": "a\nb"}, {"env_id": "x" * 300}], ids=str
)
def test_no_name_leads_out_of_the_directory(tmp_path: Path, bad: dict[str, str]) -> None:
    name = {"env_id": "word-count", "model": "tiny", "run_id": "first", **bad}
    with pytest.raises(ConfigurationError, match="can't be the name of a directory"):
        exported(our_rows(tmp_path / "rollouts.jsonl"), tmp_path / "outputs", **name)


def test_a_torn_line_of_a_run_is_counted_and_the_rest_is_imported(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    with (run / "results.jsonl").open("a") as stream:
        stream.write('{"example_id": 3, "prom')
    ended = CliRunner().invoke(command, ["import", str(run), str(tmp_path / "rollouts.jsonl")])
    assert ended.exit_code == 0, ended.output
    assert "6 rows, 1 left out" in ended.output
    assert "results.jsonl line 7" in ended.output


def test_a_row_that_is_nested_too_deeply_is_left_out_both_ways(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    with (run / "results.jsonl").open("a") as stream:
        stream.write(f'{{"example_id": 3, "prompt": {"[" * 700}{"]" * 700}, "reward": 1.0}}\n')
    imported = import_run(run, tmp_path / "rollouts.parquet")
    back = exported(run / "results.jsonl", tmp_path / "outputs", env_id="word-count", model="tiny")
    for done in (imported, back):
        assert (done.num_rows, done.num_bad) == (6, 1)
        assert done.bad == ("results.jsonl line 7: its JSON is nested too deeply",)


def test_a_file_without_a_row_that_can_be_read_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("[]\n7\n")
    for convert in (
        lambda: import_run(tmp_path / "results.jsonl", tmp_path / "rollouts.jsonl"),
        lambda: exported(tmp_path / "results.jsonl", tmp_path / "outputs", env_id="a", model="b"),
    ):
        with pytest.raises(
            ConfigurationError, match=r"none of 2 rows of .* can be used; the first, results.jsonl line 1"
        ):
            convert()
    assert not (tmp_path / "rollouts.jsonl").exists()
    assert not list((tmp_path / "outputs").rglob("*.json*"))


def test_the_metadata_of_an_earlier_import_is_not_taken_for_another_run(tmp_path: Path) -> None:
    rollouts = tmp_path / "rollouts.jsonl"
    import_run(a_run(tmp_path / "run"), rollouts)
    (tmp_path / "run" / "metadata.json").unlink()
    import_run(tmp_path / "run", rollouts)
    with pytest.raises(ConfigurationError, match="--env-id and --model"):
        exported(rollouts, tmp_path / "outputs")


def test_the_directory_where_one_is_can_be_named_by_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_run(a_run(tmp_path / "run"), tmp_path / "rollouts")
    monkeypatch.chdir(tmp_path / "rollouts")
    assert results_of(exported(Path(), tmp_path / "outputs").path) == the_results()


def test_a_metadata_file_that_is_no_object_and_an_output_of_another_kind_are_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for name in ("rollouts.csv", "."):
        with pytest.raises(ConfigurationError, match=r"\.jsonl or \.parquet"):
            import_run(run, Path(name))
    (run / "metadata.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="a JSON object"):
        import_run(run, tmp_path / "rollouts.jsonl")


def test_prime_rls_sft_finds_prompt_and_completion_of_the_good_rows(tmp_path: Path) -> None:
    rollouts = our_rows(tmp_path / "rollouts.jsonl")
    output = tmp_path / "sft.jsonl"
    ended = CliRunner().invoke(command, ["export-sft", str(rollouts), str(output), "--min-reward", "0.25"])
    assert ended.exit_code == 0, ended.output
    assert "2 of 4 rows are used" in ended.output
    # Prime-RL opens its data this way.
    found = datasets.load_dataset("json", data_files=str(output), split="train", cache_dir=str(tmp_path / "cache"))
    assert found.column_names == ["prompt", "completion"]
    assert found[0] == {
        "prompt": [{"role": "user", "content": "2+2="}],
        "completion": [{"role": "assistant", "content": "4"}],
    }


def test_prime_rls_sft_finds_messages_and_tools(tmp_path: Path) -> None:
    result = the_results()[0]
    result["tool_defs"] = [{"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}]
    (tmp_path / "results.jsonl").write_text(json.dumps(result) + "\n")
    words = ["export-sft", str(tmp_path / "results.jsonl"), str(tmp_path / "sft.jsonl"), "--layout", "messages"]
    assert CliRunner().invoke(command, words).exit_code == 0
    [row] = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][2]["tool_calls"] == [CALL]
    assert json.loads(row["tools"]) == result["tool_defs"]


def test_an_export_without_a_good_row_writes_nothing(tmp_path: Path) -> None:
    rollouts = our_rows(tmp_path / "rollouts.jsonl")
    words = ["export-sft", str(rollouts), str(tmp_path / "sft.jsonl"), "--min-reward", "2"]
    ended = CliRunner().invoke(command, words)
    assert isinstance(ended.exception, ConfigurationError)
    assert "no row to learn from, of 4" in str(ended.exception)
    assert not (tmp_path / "sft.jsonl").exists()
