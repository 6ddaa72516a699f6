"""What reaches an agent's server, and what comes of it (rows G2 to G5, G9, G10, G13 to G15, G21 to G24)."""

import json
import shutil
import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from aiohttp import web

from rollstream.rows.row import MAX_ROW_BYTES
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, TooManyFailuresError
from tests.harness.gym_runs import GymRun, a_gym_row, indices, read, written
from tests.harness.gym_server import AGENT, Row, a_response, graded, gym_server, text_item

MISMATCH = {**text_item("x"), "generation_token_ids": [1, 2], "generation_log_probs": [-1.0]}


def stamped(row: Row) -> Row:
    return {
        name: value for name, value in row.items() if name not in ("_ng_task_index", "_ng_rollout_index", "agent_ref")
    }


def refused(reason: str, status: int = 500) -> Any:
    return lambda row: web.json_response({"detail": reason}, status=status)


def test_g2_each_row_reaches_the_server_as_it_is_but_for_the_keys_that_are_added(tmp_path: Path) -> None:
    rows = [a_gym_row(n, test_cases=[{"in": "é\u2028", "out": 1e-7}, None], big=2**60 + n) for n in range(5)]
    with gym_server() as server:
        assert GymRun(tmp_path, server, rows).run() == 0
    found = sorted((stamped(row) for row in server.rows), key=lambda row: row["big"])
    assert [json.dumps(row) for row in found] == [json.dumps(row) for row in rows]


def test_g3_five_rows_and_two_repeats_are_ten_rollouts_and_equal_rows_are_one_task(tmp_path: Path) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(7)])
        assert run.run("+limit=5", "+num_repeats=2") == 0
        assert indices(run.rollouts) == [(task, rollout) for task in range(5) for rollout in range(2)]
        assert indices(read(run.beside("_materialized_inputs.jsonl"))) == indices(run.rollouts)
        (tmp_path / "equal").mkdir()
        equal = GymRun(tmp_path / "equal", server, [a_gym_row(1), a_gym_row(2), a_gym_row(1)])
        assert equal.run("+num_repeats=2", "+num_repeats_add_seed=true") == 0
    assert indices(equal.rollouts) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
    assert [row["responses_create_params"]["seed"] for row in equal.rollouts] == [0, 1, 0, 1, 2, 3]


def test_rows_without_an_agent_and_other_bad_rows_are_named_together_before_anything_is_asked(tmp_path: Path) -> None:
    rows: list[Row] = [a_gym_row(0), {"expected_answer": "1"}, {"responses_create_params": {"input": []}}]
    with gym_server() as server:
        run = GymRun(tmp_path, server, rows)
        with pytest.raises(ConfigurationError) as why:
            run.run("~agent_name")
    said = str(why.value)
    assert said.startswith("3 rows of tasks.jsonl can't be asked: tasks.jsonl line 1: no agent_ref")
    assert "line 2: no responses_create_params" in said
    assert server.asked == []


def test_repeats_may_be_given_for_each_agent(tmp_path: Path) -> None:
    rows = [a_gym_row(0), a_gym_row(1, agent_ref={"type": "responses_api_agents", "name": "other"})]
    with gym_server() as server:
        run = GymRun(tmp_path, server, rows)
        assert run.run("+num_repeats={other: 3, _default: 2}", f"+agent_url={server.url}") == 0
    assert indices(run.rollouts) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_an_agent_that_the_head_server_does_not_know_is_named(tmp_path: Path) -> None:
    with gym_server() as server, pytest.raises(ConfigurationError) as why:
        GymRun(tmp_path, server, [a_gym_row()]).run("++agent_name=nobody")
    assert f"runs no responses_api_agents 'nobody'; it runs {AGENT}" in str(why.value)


def test_a_server_that_is_not_there_ends_the_command_with_its_address(tmp_path: Path) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row()])
    with pytest.raises(EngineDeadError) as why:
        run.run("+start_seconds=0.1")
    assert f"nobody answers at http://127.0.0.1:{server.port}/global_config_dict_yaml" in str(why.value)


def test_g4_three_in_parallel_are_reached_and_never_more(tmp_path: Path) -> None:
    with gym_server(waits_for=3) as server:
        assert GymRun(tmp_path, server, [a_gym_row(n) for n in range(12)]).run("+num_samples_in_parallel=3") == 0
    assert (len(server.asked), server.most_in_flight) == (12, 3)


def test_g5_values_of_the_command_line_replace_those_of_the_row_and_nested_ones_as_a_whole(tmp_path: Path) -> None:
    row = a_gym_row()
    row["responses_create_params"] |= {
        "temperature": 1.0,
        "top_p": 0.5,
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    words = ["+responses_create_params.temperature=0.1", "+responses_create_params.reasoning.effort=high"]
    with gym_server() as server:
        assert GymRun(tmp_path, server, [row]).run(*words) == 0
    params = server.rows[0]["responses_create_params"]
    assert (params["temperature"], params["top_p"], params["reasoning"]) == (0.1, 0.5, {"effort": "high"})


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_g9_the_documents_three_jq_lines_find_what_it_says(tmp_path: Path) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(0), a_gym_row(1, says="no")])
        assert run.run() == 0

    def jq(line: str) -> str:
        command = line.replace("FILE", str(run.output))
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=30).stdout

    assert json.loads(jq("jq -c 'select(.success == true)' FILE"))["_ng_task_index"] == 0
    assert jq("jq '.reward' FILE | sort -n | uniq -c").split() == ["1", "0", "1", "1"]
    names = "jq '.output[] | select(.tool_calls) | .tool_calls[].function.name' FILE | sort | uniq -c"
    assert jq(names).split() == ["2", '"add"']


def test_g9_the_output_has_gyms_keys_and_the_documents(tmp_path: Path) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(7)])
        assert run.run() == 0
    [row] = run.rollouts
    call = {"id": "call-0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    assert row["output"] == [
        {"role": "assistant", "content": "I call it."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-0", "content": "3"},
        {"role": "assistant", "content": "7"},
    ]
    assert row["response"] == a_response("I call it.", "7", calls=1)
    assert (row["reward"], row["success"], row["agent_ref"]) == (1.0, True, {"name": AGENT})
    assert row["responses_create_params"] == a_gym_row(7)["responses_create_params"]
    metadata = row["metadata"]
    assert (metadata["reasoning_steps"], metadata["tool_calls_made"], metadata["verification_score"]) == (3, 1, 1.0)


def test_a_key_of_the_verifiers_own_stays_and_an_input_of_that_name_is_kept_beside_ours(tmp_path: Path) -> None:
    def verdict(row: Row) -> Row:
        return {**graded(row), "success": "maybe", "output": "mine", "reward_components": {"format": 0.5}}

    with gym_server(answer=verdict) as server:
        run = GymRun(tmp_path, server, [a_gym_row(metadata={"source": "book", "reasoning_steps": "theirs"})])
        assert run.run() == 0
    [row] = run.rollouts
    assert (row["success"], row["output"], row["reward_components"]) == ("maybe", "mine", {"format": 0.5})
    assert (row["metadata"]["source"], row["metadata"]["reasoning_steps"]) == ("book", "theirs")
    assert row["metadata"]["tool_calls_made"] == 1


def test_g10_both_sets_of_figures_equal_a_recomputation_from_the_file(tmp_path: Path) -> None:
    def verdict(row: Row) -> Row:
        score = int(row["expected_answer"]) / 10
        return {"response": a_response("x", calls=row["calls"]), "reward": score, "accuracy": 1 - score}

    with gym_server(answer=verdict) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n, calls=n % 3) for n in range(11)])
        assert run.run("+num_repeats=2") == 0
    rows, figures = run.rollouts, run.figures
    assert figures["avg_reward"] == pytest.approx(fmean(row["reward"] for row in rows))
    assert figures["success_rate"] == pytest.approx(fmean(row["success"] for row in rows)) == pytest.approx(1 / 11)
    items = [row["response"]["output"] for row in rows]
    calls = [sum(item["type"] == "function_call" for item in found) for found in items]
    assert figures["avg_tool_calls"] == pytest.approx(fmean(calls))
    assert figures["avg_response_length"] == fmean(row["response"]["usage"]["output_tokens"] for row in rows)
    assert figures["mean/accuracy"] == pytest.approx(fmean(row["accuracy"] for row in rows))
    assert figures["rollouts_per_minute"] > 0
    assert figures["left"] == {AGENT: 0}


def test_g14_a_500_is_one_row_of_the_failures_and_never_a_fourth_attempt(tmp_path: Path) -> None:
    def breaks(row: Row) -> Row | web.StreamResponse:
        return refused("the sandbox is gone")(row) if row["expected_answer"] == "3" else graded(row)

    with gym_server(answer=breaks) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(6)])
        for call in range(1, 5):
            assert run.run() == 0
            [failed] = read(run.beside("_failures.jsonl"))
            assert (failed["attempts"], failed["terminal"]) == (min(call, 3), call >= 3)
            assert len(run.rollouts) == 5
    assert len(server.asked) == 5 + 3
    assert (failed["failure"], failed["_ng_task_index"], failed["agent_ref"]) == ("engine", 3, {"name": AGENT})
    assert "/run answered 500: the sandbox is gone" in failed["message"]
    assert run.figures["left"] == {AGENT: 1}
    assert run.figures["avg_reward"] == 1.0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda row: b"<html>", "without `response.output`"),
        (lambda row: b'{"reward": 1}', "without `response.output`"),
        (lambda row: {"response": a_response("x")}, "without a `reward` that is a finite number"),
        (lambda row: {"response": a_response("x"), "reward": True}, "without a `reward`"),
        (lambda row: {"response": a_response("x"), "reward": 1e300}, "beyond"),
        (lambda row: {**graded(row), "failure_kind": "tool_server_died"}, "failure_kind 'tool_server_died'"),
        (lambda row: web.Response(status=307, headers={"Location": "http://127.0.0.1:1/run"}), "/run answered 307"),
        (lambda row: b"[" * 10_000, "without `response.output`"),
        (lambda row: b'{"response": [' + b"[]," * 2_000_000 + b"[]]}", "without `response.output`"),
        (lambda row: b" " * (MAX_ROW_BYTES + 1), "the reply has more than"),
        (lambda row: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}), "compressed"),
        (
            lambda row: {"response": a_response("x", output=[MISMATCH]), "reward": 1.0},
            "2 generation_token_ids and 1 generation_log_probs",
        ),
    ],
)
def test_garbage_is_a_failure_and_never_a_reward_of_zero(tmp_path: Path, answer: Any, why: str) -> None:
    def partly(row: Row) -> Any:
        return answer(row) if row["expected_answer"] == "1" else graded(row)

    with gym_server(answer=partly) as server:
        run = GymRun(tmp_path, server, [a_gym_row(0), a_gym_row(1)])
        assert run.run() == 0
    assert [row["reward"] for row in run.rollouts] == [1.0]
    [failed] = read(run.beside("_failures.jsonl"))
    assert why in failed["message"]


def test_a_masked_sample_keeps_its_turns_and_has_no_reward(tmp_path: Path) -> None:
    with gym_server(answer=lambda row: {**graded(row), "mask_sample": row["expected_answer"] == "1"}) as server:
        run = GymRun(tmp_path, server, [a_gym_row(0), a_gym_row(1, says="no")])
        assert run.run() == 0
    assert [(row["reward"], row["success"]) for row in run.rollouts] == [(1.0, True), (None, None)]
    assert len(run.rollouts[1]["output"]) == 4
    assert run.figures["avg_reward"] == 1.0


def test_a_slow_rollout_ends_at_its_deadline_and_the_others_go_on(tmp_path: Path) -> None:
    with gym_server(seconds=30.0) as server:
        run = GymRun(tmp_path, server, [a_gym_row()])
        assert run.run("+rollout_seconds=0.2", "+fail_over=1") == 0
    [failed] = read(run.beside("_failures.jsonl"))
    assert (failed["failure"], failed["message"]) == ("deadline", "no answer within 0.2 s")


def test_a_busy_server_is_asked_again_and_that_is_no_attempt(tmp_path: Path) -> None:
    busy = [True, True]

    def answers(row: Row) -> Row | web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "0.05"}) if busy and busy.pop() else graded(row)

    with gym_server(answer=answers) as server:
        run = GymRun(tmp_path, server, [a_gym_row()])
        assert run.run() == 0
    assert (len(server.asked), len(run.rollouts)) == (3, 1)


def test_a_server_that_only_fails_ends_the_command_and_uses_up_no_attempt(tmp_path: Path) -> None:
    with gym_server(answer=refused("no model")) as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(300)])
        with pytest.raises(TooManyFailuresError, match="no model"):
            run.run("+num_samples_in_parallel=10")
    assert 100 <= len(server.asked) <= 110


def test_no_cookie_of_one_rollout_reaches_another(tmp_path: Path) -> None:
    with gym_server() as server:
        assert GymRun(tmp_path, server, [a_gym_row(n) for n in range(4)]).run("+num_samples_in_parallel=1") == 0
    assert server.cookies == ["", "", "", ""]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("+limit=2", "limit = null, now it is 2"),
        ("+num_repeats=3", "num_repeats = null, now it is 3"),
        ("++agent_name=other", f'agent_name = "{AGENT}", now it is "other"'),
        ("+responses_create_params.temperature=0.5", 'responses_create_params = {}, now it is {"temperature": 0.5}'),
    ],
)
def test_g15_other_options_are_refused_and_the_key_is_named(tmp_path: Path, word: str, key: str) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(3)])
        assert run.run() == 0
        before = run.beside("_materialized_inputs.jsonl").read_bytes()
        with pytest.raises(ConfigurationError) as why:
            run.run(word)
        assert key in str(why.value)
        assert "+resume_from_cache=false" in str(why.value)
        assert (len(server.asked), run.beside("_materialized_inputs.jsonl").read_bytes()) == (3, before)
        assert run.run(word, "+resume_from_cache=false", f"+agent_url={server.url}") == 0


def test_g15_changed_tasks_are_refused_and_the_same_ones_ask_nothing(tmp_path: Path) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(n) for n in range(3)])
        assert run.run() == 0
        assert run.run() == 0
        assert run.said[0].endswith("is complete: nothing is left to ask")
        written(run.input, [a_gym_row(n) for n in range(4)])
        with pytest.raises(ConfigurationError, match="begun with input"):
            run.run()
    assert len(server.asked) == 3


def test_g23_token_ids_and_logprobs_of_each_item_come_through(tmp_path: Path) -> None:
    tokens = {
        "prompt_token_ids": [5, 6],
        "generation_token_ids": [7, 8, 9],
        "generation_log_probs": [-0.5, -0.25, -1.0],
    }

    def answers(row: Row) -> Row:
        return {"response": a_response("x", output=[{**text_item("x"), **tokens}]), "reward": 1.0}

    with gym_server(answer=answers) as server:
        run = GymRun(tmp_path, server, [a_gym_row()])
        assert run.run() == 0
    [item] = run.rollouts[0]["response"]["output"]
    assert {name: item[name] for name in tokens} == tokens


def test_g24_what_a_server_does_not_report_is_a_gap_and_not_a_zero(tmp_path: Path) -> None:
    calls = [{"input_tokens": 20, "output_tokens": 8, "latency_seconds": 0.5}]

    def answers(row: Row) -> Row:
        if row["expected_answer"] == "0":
            return {"response": a_response("x", usage=None), "reward": 1.0}
        return {"response": a_response("x"), "reward": 1.0, "ng_model_call_capture": calls}

    with gym_server(answer=answers) as server:
        run = GymRun(tmp_path, server, [a_gym_row(0), a_gym_row(1)])
        assert run.run() == 0
    without, told = (row["metadata"] for row in run.rollouts)
    assert without["output_tokens"] is None
    assert without["gaps"] == [
        "no_input_tokens",
        "no_output_tokens",
        "no_cached_tokens",
        "no_reasoning_tokens",
        "no_model_call_capture",
    ]
    assert (told["output_tokens"], told["cached_tokens"], told["gaps"]) == (8, 4, [])
    assert run.rollouts[1]["ng_model_call_capture"] == calls
    assert run.figures["avg_response_length"] == 8.0


def test_g21_a_template_makes_the_input_and_a_row_with_both_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "prompt.yaml"
    template.write_text("system: Be short.\nuser: 'What is {a} {{plus}} {b}?'\n")
    with gym_server() as server:
        run = GymRun(tmp_path, server, [{"a": 1, "b": "2", "expected_answer": "3"}])
        assert run.run(f"+prompt_config={template}") == 0
        assert server.rows[0]["responses_create_params"]["input"] == [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "What is 1 {plus} 2?"},
        ]
        written(run.input, [a_gym_row(), {"a": 1}])
        with pytest.raises(ConfigurationError) as why:
            run.run(f"+prompt_config={template}", "+resume_from_cache=false")
    assert "line 1: it has responses_create_params.input, and a prompt template is given too" in str(why.value)
    assert "line 2: the prompt template names a field 'b' that the row lacks" in str(why.value)


@pytest.mark.parametrize(
    "text", ["user: '{a.__class__}'", "user: '{0}'", "user: '{'", "other: x", "[1", "user: '{a!r}'"]
)
def test_a_template_with_anything_but_names_is_refused(tmp_path: Path, text: str) -> None:
    template = tmp_path / "prompt.yaml"
    template.write_text(text)
    with gym_server() as server, pytest.raises(ConfigurationError, match=r"prompt\.yaml"):
        GymRun(tmp_path, server, [{"a": 1}]).run(f"+prompt_config={template}")


def test_given_task_indices_are_kept_and_must_be_given_to_all_rows(tmp_path: Path) -> None:
    with gym_server() as server:
        run = GymRun(tmp_path, server, [a_gym_row(0, _ng_task_index=7), a_gym_row(1, _ng_task_index=3)])
        assert run.run() == 0
        assert indices(run.rollouts) == [(7, 0), (3, 0)]
        for other in (None, -1, True, "3"):
            written(run.input, [a_gym_row(0, _ng_task_index=7), a_gym_row(1, _ng_task_index=other)])
            with pytest.raises(ConfigurationError, match="_ng_task_index"):
                run.run("+resume_from_cache=false")


@pytest.mark.parametrize(
    "config",
    ["[1", "- a", "!!python/object/apply:os.system ['true']", f"{AGENT}: {{responses_api_agents: {{a: {{host: 5}}}}}}"],
)
def test_a_head_server_that_gives_no_configuration_is_named_with_its_address(tmp_path: Path, config: str) -> None:
    with gym_server(config=config) as server, pytest.raises(ConfigurationError, match=r"http://127\.0\.0\.1"):
        GymRun(tmp_path, server, [a_gym_row()]).run()
    assert server.asked == []


def test_a_server_that_the_head_server_places_on_another_machine_is_not_asked(tmp_path: Path) -> None:
    place = f"{AGENT}: {{responses_api_agents: {{a: {{host: 169.254.169.254, port: 80}}}}}}"
    with gym_server(config=place) as server, pytest.raises(ConfigurationError, match=r"name it with \+agent_url"):
        GymRun(tmp_path, server, [a_gym_row()]).run()
