"""Rows of other formats as input, datasets that are checked, and rollouts as training data (G19, G21, G26, G27)."""

import json
from pathlib import Path

import pytest

from rollstream.gym.convert import convert_rows
from rollstream.gym.exports import export_dpo, export_sft, filter_rollouts
from rollstream.gym.options import ConvertOptions, FilterOptions, PairOptions, PrepareOptions, from_words
from rollstream.gym.prepare import dataset_metrics, prepare_data
from rollstream.rows.write import rewrite_rows
from rollstream.schemas.errors import ConfigurationError
from tests.harness.gym_runs import GymRun, a_gym_row, read, written
from tests.harness.gym_server import AGENT, Row, a_response, gym_server

VERL = {
    "data_source": "math",
    "prompt": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"}],
    "reward_model": {"style": "rule", "ground_truth": 4},
    "extra_info": {"index": 7},
}
GSM8K = {"question": "Two and two?", "answer": "It is 2 + 2 = <<2+2=4>>4.\n#### 4"}
VERIFIERS = {"prompt": [{"role": "user", "content": "2+2?"}], "answer": "4", "info": {"level": 1}, "task": "sums"}


def input_of(row: Row) -> object:
    return row["responses_create_params"]["input"]


def converted(path: Path, *words: str) -> tuple[list[Row], list[str]]:
    said: list[str] = []
    output = path.with_name("input.jsonl")
    options = [f"+input_fpath={path}", f"+output_jsonl_fpath={output}", *words]
    convert_rows(from_words(ConvertOptions, options), said.append)
    return read(output), said


def test_g26_rows_of_verl_gsm8k_and_verifiers_become_input_rows(tmp_path: Path) -> None:
    rewrite_rows(tmp_path / "verl.parquet", "parquet", lambda: [VERL])
    [verl], _ = converted(tmp_path / "verl.parquet", f"+agent_name={AGENT}")
    assert input_of(verl) == VERL["prompt"]
    assert (verl["expected_answer"], verl["data_source"], verl["agent_ref"]) == ("4", "math", {"name": AGENT})
    assert verl["extra_info"] == {"index": 7}
    [gsm8k, verifiers], said = converted(written(tmp_path / "rows.jsonl", [GSM8K, VERIFIERS]))
    assert input_of(gsm8k) == [{"role": "user", "content": "Two and two?"}]
    assert (gsm8k["expected_answer"], gsm8k["answer"]) == ("4", GSM8K["answer"])
    assert (verifiers["expected_answer"], verifiers["info"], verifiers["task"]) == ("4", {"level": 1}, "sums")
    assert said == [f"{tmp_path}/input.jsonl: 2 rows, 0 left out"]


def test_g26_what_is_converted_can_be_collected(tmp_path: Path) -> None:
    converted(written(tmp_path / "rows.jsonl", [GSM8K]))
    with gym_server() as server:
        run = GymRun(tmp_path, server, read(tmp_path / "input.jsonl"))
        assert run.run() == 0
    assert run.rollouts[0]["reward"] == 1.0


def test_g26_a_row_that_asks_nothing_is_left_out_and_said_and_tools_of_chats_become_flat(tmp_path: Path) -> None:
    tool = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
    rows = [{**VERIFIERS, "tools": [{"type": "function", "function": tool}]}, {"answer": "4"}]
    [row], said = converted(written(tmp_path / "rows.jsonl", rows))
    assert row["responses_create_params"]["tools"] == [{"type": "function", **tool}]
    assert "1 rows, 1 left out" in said[0]
    assert "rows.jsonl line 2: it has neither `prompt` nor `messages`" in said[1]
    with pytest.raises(ConfigurationError, match="none of 1 rows"):
        converted(written(tmp_path / "bad.jsonl", rows[1:]))


@pytest.mark.parametrize("column", ["tools", "tool_defs"])
def test_g26_tools_as_json_text_and_calls_in_a_prompt_become_items(tmp_path: Path, column: str) -> None:
    """So parquet and verifiers have them."""
    tool = {"type": "function", "name": "add", "parameters": {}}
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    prompt = [{"role": "user", "content": "2+2?"}, *said]
    [row], _ = converted(written(tmp_path / "rows.jsonl", [{"prompt": prompt, column: json.dumps([tool])}]))
    assert row["responses_create_params"] == {
        "input": [
            prompt[0],
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
        ],
        "tools": [tool],
    }
    assert row.keys() == {"responses_create_params"}


def test_g26_a_row_of_gym_keeps_its_other_parameters_and_a_tool_that_is_none_is_said(tmp_path: Path) -> None:
    params = {"input": [{"role": "user", "content": "2+2?"}], "temperature": 0.5}
    rows = [{"responses_create_params": params}, {"prompt": "2+2?", "tools": ["add"]}]
    [row], said = converted(written(tmp_path / "rows.jsonl", rows))
    assert row["responses_create_params"] == params
    assert "line 2: a tool is no object" in said[1]


def rollouts_of(tmp_path: Path, rewards: list[list[float | None]]) -> Path:
    """A file with these rewards of each task; a rollout's text is its reward."""
    rows = []
    for task, found in enumerate(rewards):
        for rollout, reward in enumerate(found):
            stamps = {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": AGENT}}
            rows.append({**a_gym_row(task), "response": a_response(str(reward), calls=1), "reward": reward, **stamps})
    return written(tmp_path / "rollouts.jsonl", rows)


def test_g19_sft_keeps_the_prompts_messages_and_the_calls_of_good_rollouts(tmp_path: Path) -> None:
    path, output = rollouts_of(tmp_path, [[1.0, 0.0], [None, 0.5]]), tmp_path / "sft.jsonl"
    words = [f"+rollouts_jsonl_fpath={path}", f"+output_jsonl_fpath={output}", "+minimum_reward=0.5"]
    export_sft(from_words(FilterOptions, words), print)
    rows = read(output)
    assert [row["reward"] for row in rows] == [1.0, 0.5]
    messages = rows[0]["messages"]
    assert messages[0] == {"role": "user", "content": "Say 0."}
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}


def test_g19_dpo_pairs_the_best_with_the_worst_where_they_differ_by_a_tenth(tmp_path: Path) -> None:
    rewards = [[0.5, 1.0, 0.0, 0.75, 0.7], [0.5, 0.55], [1.0, None], [0.0, 0.1]]
    path, output = rollouts_of(tmp_path, rewards), tmp_path / "dpo.jsonl"
    export_dpo(from_words(PairOptions, [f"+rollouts_jsonl_fpath={path}", f"+output_jsonl_fpath={output}"]), print)
    rows = read(output)
    assert [(row["chosen_reward"], row["rejected_reward"]) for row in rows] == [(1.0, 0.0), (0.75, 0.5), (0.1, 0.0)]
    assert rows[0]["prompt"] == [{"role": "user", "content": "Say 0."}]
    assert (rows[0]["chosen"][-1]["content"], rows[0]["rejected"][-1]["content"]) == ("1.0", "0.0")


@pytest.mark.parametrize(
    "reward", ["1" + "0" * 400, "true", '"1"', "1e400", '1.0, "mask_sample": true', '1.0, "failure_kind": "judge"']
)
def test_what_is_no_reward_of_ours_makes_neither_pairs_nor_examples(tmp_path: Path, reward: str) -> None:
    path, output = rollouts_of(tmp_path, [[0.0, 0.25]]), tmp_path / "made.jsonl"
    path.write_text(path.read_text().replace('"reward": 0.25', f'"reward": {reward}'))
    words = [f"+rollouts_jsonl_fpath={path}", f"+output_jsonl_fpath={output}"]
    export_dpo(from_words(PairOptions, words), print)
    assert read(output) == []
    export_sft(from_words(FilterOptions, [*words, "+minimum_reward=0.1"]), print)
    assert read(output) == []


def test_a_line_that_cannot_be_read_and_a_rollout_that_is_there_twice_are_refused(tmp_path: Path) -> None:
    path, output = rollouts_of(tmp_path, [[0.0, 1.0]]), tmp_path / "dpo.jsonl"
    options = from_words(PairOptions, [f"+rollouts_jsonl_fpath={path}", f"+output_jsonl_fpath={output}"])
    whole = path.read_text()
    path.write_text(whole + whole.replace("1.0", "0.5"))
    with pytest.raises(ConfigurationError, match=r"line 3: rollout 0 of task 0 of .* is there twice"):
        export_dpo(options, print)
    path.write_text(whole + '{"reward": 1\n')
    with pytest.raises(ConfigurationError, match=r"line 3: .*; remove that line"):
        export_dpo(options, print)
    assert not output.exists()


def test_g27_rollouts_are_kept_by_reward_and_their_tokens_are_summed(tmp_path: Path) -> None:
    path, output, said = rollouts_of(tmp_path, [[1.0, 0.4, None]]), tmp_path / "kept.jsonl", list[str]()
    rows = read(path)
    rows[1]["response"]["usage"] = None
    written(path, rows)
    words = [f"+rollouts_jsonl_fpath={path}", f"+output_jsonl_fpath={output}", "+minimum_reward=0.5"]
    filter_rollouts(from_words(FilterOptions, words), said.append)
    assert read(output) == rows[:1]
    assert said == [
        f"{output}: 1 of 3 rollouts have a reward of at least 0.5",
        "tokens of those: 20 in, 8 out; of all: 40 in, 16 out, and 1 rollouts did not report them",
    ]


def prepared(tmp_path: Path, mode: str = "example_validation") -> list[str]:
    said: list[str] = []
    words = [f"+config_paths=[{tmp_path}/agent.yaml]", f"+output_dirpath={tmp_path}/out", f"+mode={mode}"]
    prepare_data(from_words(PrepareOptions, words), said.append)
    return said


def a_config(tmp_path: Path, kind: str = "example") -> None:
    dataset = {"name": "sums", "type": kind, "jsonl_fpath": f"{tmp_path}/example.jsonl", "license": None}
    agent = {AGENT: {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "datasets": [dataset]}}}}
    (tmp_path / "agent.yaml").write_text(json.dumps(agent))


def test_g21_the_metrics_of_a_dataset_are_gyms_and_a_stored_file_must_agree(tmp_path: Path) -> None:
    rows = [a_gym_row(n, level=n, tags=["a", "b"]) for n in range(4)]
    rows[0]["responses_create_params"] |= {"temperature": 0.5, "tools": [{}, {}]}
    rows[1]["responses_create_params"]["input"] = "Say it in five words."
    written(tmp_path / "example.jsonl", rows)
    a_config(tmp_path)
    prepared(tmp_path)
    stored = json.loads((tmp_path / "example_metrics.json").read_text())
    assert (stored["name"], stored["Number of examples"]) == ("sums", 4)
    assert stored["Number of turns"] == {
        "Total # non-null values": 4, "Average": 1.0, "Min": 1.0, "Max": 1.0, "Median": 1.0, "Standard deviation": 0.0
    }  # fmt: skip
    assert stored["level"]["Standard deviation"] == 1.29
    assert (stored["level"]["Median"], stored["Temperature"]["Total # non-null values"]) == (1.5, 1)
    assert (stored["tags"], stored["expected_answer"]["unique_count"]) == ({"unique_count": 2, "total_count": 8}, 4)
    words = [len(json.dumps(row["responses_create_params"]).split()) for row in rows]
    assert stored["Json-dumped number of words (proxy for token count)"]["Max"] == max(words)
    collated = read(tmp_path / "out" / "example.jsonl")
    assert collated[0] == {**rows[0], "agent_ref": {"type": "responses_api_agents", "name": AGENT}}
    prepared(tmp_path)
    written(tmp_path / "example.jsonl", rows[:3])
    with pytest.raises(ConfigurationError, match=r"example_metrics\.json: its 'Number of examples' is not that"):
        prepared(tmp_path)


def test_g21_the_datasets_of_files_that_a_file_names_are_there(tmp_path: Path) -> None:
    written(tmp_path / "example.jsonl", [a_gym_row()])
    a_config(tmp_path)
    (tmp_path / "agent.yaml").rename(tmp_path / "lower.yaml")
    text = f"config_paths: ['{tmp_path}/lower.yaml']\ntwin: {{_copy: {AGENT}}}\n"
    (tmp_path / "agent.yaml").write_text(text)
    assert [line.partition(":")[0] for line in prepared(tmp_path)[:2]] == [AGENT, "twin"]


def test_g21_a_dataset_with_bad_rows_and_a_mode_without_datasets_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "example.jsonl", [a_gym_row(), {"expected_answer": "1"}])
    with pytest.raises(ConfigurationError, match=r"example\.jsonl line 2: no responses_create_params"):
        dataset_metrics(tmp_path / "example.jsonl")
    a_config(tmp_path)
    with pytest.raises(ConfigurationError, match="no agent of these files has a dataset of type train or validation"):
        prepared(tmp_path, "train_preparation")
