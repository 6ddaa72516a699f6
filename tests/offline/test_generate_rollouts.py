"""`generate-rollouts`, its flags, its columns, its snippets, against servers and in process."""

import asyncio
import json
from pathlib import Path

import pandas
import pytest
from click.testing import CliRunner

from rollstream.cli.generate_rollouts import command
from rollstream.local.tiny_model import write_tiny_model
from rollstream.offline.options import GenerateOptions
from rollstream.offline.presets.generate import generate_rollouts
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.schemas.errors import ConfigurationError, TooManyFailuresError
from tests.harness.fake_openai import Planned, fake_openai

COLUMNS = [
    "prompt", "response", "sample_idx", "data_idx", "temperature", "top_p", "max_tokens", "status", "failure",
    "finish_reason", "original_data_source", "original_ground_truth", "original_extra_info",
]  # fmt: skip
DEFAULTS = {
    "--vllm_base_url": "http://localhost:8000/v1", "--vllm_max_concurrent": 100, "--num_samples": 8,
    "--temperature": 0.7, "--top_p": 0.9, "--max_tokens": 512, "--batch_size": 8, "--prompt_key": "prompt",
}  # fmt: skip
CHAT = [{"role": "system", "content": "be short."}, {"role": "user", "content": "2+2?"}]


def options(tmp_path, **fields):
    """The defaults, on a server."""
    paths = {"data_path": tmp_path / "data.parquet", "output_path": tmp_path / "rollouts.parquet"}
    return GenerateOptions(**{"model_path": "tiny", "use_vllm": True, **paths, **fields})


def generated(opts, said=None):
    return generate_rollouts(opts, Stop(), (said if said is not None else []).append)


def some_data(tmp_path, prompts, key="prompt"):
    """A parquet file as pandas writes it: lists arrive as numpy arrays."""
    rows = [
        {key: prompt, "data_source": "math", "ground_truth": str(row), "extra_info": {"index": row, "split": "t"}}
        for row, prompt in enumerate(prompts)
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "data.parquet")


def fields_of(path):
    return [row.fields for row in open_rows(path)]


def test_every_flag_of_the_document_is_there_with_its_default():
    found = {parameter.opts[0]: parameter for parameter in command.params}
    assert [name for name, parameter in found.items() if parameter.required] == ["--model_path", "--data_path"]
    assert {name: found[name].default for name in DEFAULTS} == DEFAULTS
    context = command.make_context("generate-rollouts", ["--model_path", "m", "--data_path", "d"])
    absent = ("vllm_model_name", "output_path", "output_format", "use_vllm", "trust_remote_code")
    assert [context.params[name] for name in absent] == [None, None, None, False, False]
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    for promised in ("same as model_path", "./rollouts.parquet", "[default: parquet]", "http://localhost:8000/v1"):
        assert promised in text


def test_without_flags_the_output_is_the_documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    some_data(tmp_path, ["2+2?"])
    with fake_openai() as server:
        generated(options(tmp_path, vllm_base_url=server.url, output_path=None, num_samples=1))
        generated(options(tmp_path, vllm_base_url=server.url, output_path=None, num_samples=1, output_format="jsonl"))
    assert fields_of(tmp_path / "rollouts.parquet") == fields_of(tmp_path / "rollouts.jsonl")


@pytest.mark.parametrize(("held", "sent"), [("sk-proxy-key-1", "sk-proxy-key-1"), ("", "dummy")])
def test_the_key_of_the_environment_or_else_any_is_sent_to_the_server(tmp_path, monkeypatch, held, sent):
    some_data(tmp_path, ["2+2?"])
    monkeypatch.setenv("LITELLM_API_KEY", held)
    with fake_openai(api_key=sent) as server:
        words = ["--model_path", "tiny", "--data_path", str(tmp_path / "data.parquet"), "--use_vllm"]
        words += ["--vllm_base_url", server.url, "--output_path", str(tmp_path / "o.jsonl"), "--num_samples", "1"]
        ended = CliRunner().invoke(command, words)
    assert ended.exit_code == 0, ended.output
    assert [row["status"] for row in fields_of(tmp_path / "o.jsonl")] == ["completed"]


def test_a_server_gets_what_the_flags_say_and_chats_keep_their_roles(tmp_path):
    some_data(tmp_path, [CHAT, CHAT[1:]], key="question")
    with fake_openai(answer=lambda body: f"to {body['messages'][0]['content']}") as server:
        generated(
            options(tmp_path, vllm_base_url=f"{server.url}/v1", prompt_key="question", num_samples=2, max_tokens=33)
        )
    asked = [call.body for call in server.asked]
    assert {(body["model"], body["temperature"], body["top_p"], body["max_tokens"]) for body in asked} == {
        ("tiny", 0.7, 0.9, 33)
    }
    assert sorted(json.dumps(body["messages"]) for body in asked) == sorted(
        json.dumps(messages) for messages in [CHAT, CHAT, CHAT[1:], CHAT[1:]]
    )
    rows = fields_of(tmp_path / "rollouts.parquet")
    assert list(rows[0]) == COLUMNS
    assert [(row["data_idx"], row["sample_idx"], row["response"]) for row in rows] == [
        (0, 0, "to be short."), (0, 1, "to be short."), (1, 0, "to 2+2?"), (1, 1, "to 2+2?"),
    ]  # fmt: skip
    assert rows[0]["prompt"] == CHAT
    assert rows[3]["original_extra_info"] == {"index": 1, "split": "t"}


def test_text_is_one_user_message(tmp_path):
    some_data(tmp_path, ["2+2?"])
    with fake_openai() as server:
        generated(options(tmp_path, vllm_base_url=server.url, num_samples=1, vllm_model_name="tiny", model_path="x/y"))
    [call] = server.asked
    assert call.body["messages"] == [{"role": "user", "content": "2+2?"}]
    assert call.body["model"] == "tiny"


def test_both_modes_give_the_same_columns_with_the_same_types(tmp_path):
    write_tiny_model(tmp_path / "model", seed=1)
    some_data(tmp_path, ["2+2=", "3+3="])
    few = {"num_samples": 2, "max_tokens": 4}
    with fake_openai() as server:
        generated(options(tmp_path, vllm_base_url=server.url, **few))
    local = tmp_path / "local.parquet"
    generated(options(tmp_path, use_vllm=False, model_path=str(tmp_path / "model"), output_path=local, **few))
    one, other = pandas.read_parquet(tmp_path / "rollouts.parquet"), pandas.read_parquet(local)
    assert list(one) == list(other) == COLUMNS
    assert one.dtypes.to_dict() == other.dtypes.to_dict()
    own = ["response", "finish_reason"]
    assert one.drop(columns=own).equals(other.drop(columns=own))
    assert set(other["finish_reason"]) <= {"stop", "length"}
    assert (other["status"] == "completed").all()


def test_all_samples_of_a_batch_are_in_flight_and_never_more_than_the_bound(tmp_path):
    some_data(tmp_path, [f"prompt {row}" for row in range(8)])
    with fake_openai(answer=lambda body: "yes") as server:
        # Nothing is answered before all of them are there.
        server.is_open = Gate(server, 64)
        generated(options(tmp_path, vllm_base_url=server.url))
    assert (server.most_in_flight, len(server.asked)) == (64, 64)
    some_data(tmp_path, [f"prompt {row}" for row in range(30)])
    with fake_openai(latency_seconds=0.01) as server:
        generated(
            options(tmp_path, vllm_base_url=server.url, vllm_max_concurrent=20, output_path=tmp_path / "second.parquet")
        )
    assert (server.most_in_flight, len(server.asked)) == (20, 240)


class Gate:
    """Opens for good once so many requests wait at it."""

    def __init__(self, server, count):
        self._server, self._count = server, count

    def set(self):
        """What a server does when it starts; nothing here."""

    async def wait(self):
        """Wait for the others."""
        while self._server.most_in_flight < self._count:
            await asyncio.sleep(0.01)


def test_a_failed_generation_has_no_response_and_a_rerun_asks_for_it_alone(tmp_path):
    some_data(tmp_path, [f"prompt {row}" for row in range(6)])
    with fake_openai() as server:
        server.planned.append(Planned(status=400, message="no such thing"))
        opts = options(tmp_path, vllm_base_url=server.url, num_samples=2)
        assert generated(opts).exit_code == 0
        frame = pandas.read_parquet(tmp_path / "rollouts.parquet")
        failed = frame[frame["status"] != "completed"]
        assert (len(frame), len(failed), failed["response"].isna().all()) == (12, 1, True)
        assert not (frame["response"] == "").any()
        [listed] = fields_of(tmp_path / "rollouts.parquet_failures.jsonl")
        assert listed["failure"] == failed["failure"].item()
        assert "no such thing" in listed["message"]
        before = len(server.asked)
        generated(opts)
        assert len(server.asked) == before + 1
    assert (pandas.read_parquet(tmp_path / "rollouts.parquet")["response"] == "yes").all()


def test_when_one_of_several_servers_dies_the_others_finish_the_job(tmp_path):
    some_data(tmp_path, [f"prompt {row}" for row in range(40)])
    with fake_openai(latency_seconds=0.02) as stays, fake_openai(latency_seconds=0.02) as dies:

        def answer(body):
            if dies.num_model_calls > 20:
                dies.planned.extend(Planned(drop=True) for _ in range(1000))
            return "yes"

        dies.answer = answer
        both = f"{stays.url}/v1, {dies.url}/v1"
        generated(options(tmp_path, vllm_base_url=both, num_samples=4, vllm_max_concurrent=16))
    frame = pandas.read_parquet(tmp_path / "rollouts.parquet")
    assert (len(frame), (frame["response"] == "yes").all()) == (160, True)
    assert dies.num_model_calls > 20


def test_a_wrong_model_name_ends_the_command_with_the_servers_message(tmp_path):
    some_data(tmp_path, [f"prompt {row}" for row in range(50)])
    with fake_openai() as server, pytest.raises(TooManyFailuresError, match="does not exist"):
        generated(options(tmp_path, vllm_base_url=server.url, vllm_model_name="other", vllm_max_concurrent=8))


def test_the_documents_pandas_and_json_snippets_run_on_both_formats(tmp_path):
    some_data(tmp_path, ["2+2?", "3+3?"])
    with fake_openai() as server:
        for name in ("rollouts.parquet", "rollouts.jsonl"):
            generated(options(tmp_path, vllm_base_url=server.url, num_samples=4, output_path=tmp_path / name))
    df = pandas.read_parquet(tmp_path / "rollouts.parquet")
    groups = [(idx, list(group[["sample_idx", "response"]]["sample_idx"])) for idx, group in df.groupby("data_idx")]
    assert groups == [(0, [0, 1, 2, 3]), (1, [0, 1, 2, 3])]
    with (tmp_path / "rollouts.jsonl").open() as f:
        rollouts = [json.loads(line) for line in f]
    assert rollouts[0] == {
        "prompt": "2+2?", "response": "yes", "sample_idx": 0, "data_idx": 0, "temperature": 0.7, "top_p": 0.9,
        "max_tokens": 512, "status": "completed", "failure": None, "finish_reason": "stop",
        "original_data_source": "math",
        "original_ground_truth": "0", "original_extra_info": {"index": 0, "split": "t"},
    }  # fmt: skip
    assert fields_of(tmp_path / "rollouts.parquet") == rollouts


def test_an_answer_that_was_cut_off_and_thought_without_an_answer_are_seen_in_the_columns(tmp_path):
    some_data(tmp_path, ["2+2?"])
    thought = {"message": {"role": "assistant", "content": None, "reasoning_content": "2 and 2"}}
    for number, choice in enumerate([{"finish_reason": "length"}, {**thought, "finish_reason": "length"}]):
        with fake_openai(choice=choice) as server:
            generated(
                options(tmp_path, vllm_base_url=server.url, num_samples=1, output_path=tmp_path / f"{number}.jsonl")
            )
    found = [row for number in range(2) for row in fields_of(tmp_path / f"{number}.jsonl")]
    assert [(row["status"], row["response"], row["finish_reason"]) for row in found] == [
        ("completed", "yes", "length"), ("completed", "", "length"),
    ]  # fmt: skip


def test_the_documents_data_file_is_a_packaged_example_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    with fake_openai() as server:
        generated(options(tmp_path, vllm_base_url=server.url, data_path=Path("data.parquet"), num_samples=1), said)
    assert "data.parquet does not exist here: taking the packaged example" in said[0]
    frame = pandas.read_parquet(tmp_path / "rollouts.parquet")
    assert {"original_data_source", "original_ground_truth"} <= set(frame)
    with pytest.raises(ConfigurationError, match=r"cannot read other\.parquet"):
        generated(options(tmp_path, data_path=Path("other.parquet")))


def test_code_beside_the_weights_is_never_run(tmp_path):
    some_data(tmp_path, ["2+2="])
    write_tiny_model(tmp_path / "model", seed=1)
    local = {"use_vllm": False, "model_path": str(tmp_path / "model"), "trust_remote_code": True, "max_tokens": 2}
    said = []
    generated(options(tmp_path, num_samples=1, **local), said)
    assert "code beside the weights is never run" in said[0]
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "evil.Model"}}))
    with pytest.raises(ConfigurationError, match="never run here"):
        generated(options(tmp_path, **local))


def test_a_model_that_is_nowhere_a_contradicting_name_and_the_input_as_output_are_refused(tmp_path):
    some_data(tmp_path, ["2+2?"])
    with pytest.raises(ConfigurationError, match="is no directory: name one"):
        generated(options(tmp_path, use_vllm=False, model_path="./nowhere/at/all"))
    with pytest.raises(ConfigurationError, match="is the name of a jsonl file"):
        generated(options(tmp_path, output_path=tmp_path / "a.jsonl", output_format="parquet"))
    with pytest.raises(ConfigurationError, match="is the input itself"):
        generated(options(tmp_path, output_path=tmp_path / "data.parquet"))
