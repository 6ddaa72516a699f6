"""`rollstream sft --rollouts`: which rows are learned from, and which tokens the loss counts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.cli.sft import command
from rollstream.local.tiny_model import write_tiny_model
from rollstream.offline.convert.conversations import RolloutExchanges, RowCounts, conversation_of
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.schemas.prompt import Message
from rollstream.training.sft.settings import SftSettings, imitating
from tests.harness.late import Late

transformers = Late("transformers")
demonstrations = Late("rollstream.training.sft.demonstrations")
sft = Late("rollstream.training.sft.sft")


def a_row(question: str = "52910=", answer: str = "01259", reward: float | None = 1.3, **fields: Any) -> dict[str, Any]:
    row = {
        "prompt": [{"role": "user", "content": question}],
        "completion": [{"role": "assistant", "content": answer}],
        "reward": reward,
    }
    return {**row, **fields}


MIXED = [
    a_row(),
    a_row("21=", "12", reward=1.0),
    a_row("43=", "43", reward=0.2),
    a_row(reward=None, status="unresolved", failure="deadline", completion=None),
    a_row(reward=None),
    a_row(reward="1.3"),
    a_row(error={"error": "ModelError"}, reward=0.0),
    a_row(finish_reason="length"),
    a_row(completion=[{"role": "robot", "content": "x"}]),
    {"prompt": "65=", "response": "56", "reward": 1.0},
    {"messages": [*a_row()["prompt"], *a_row()["completion"]], "reward": 1.0},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    kind: Any = {".jsonl": "jsonl", ".parquet": "parquet"}.get(path.suffix, "hf")
    with write_rows(path, kind) as writer:
        for row in rows:
            writer.write(row)
    return path


def test_every_row_that_is_left_out_is_counted_with_its_reason(tmp_path: Path) -> None:
    found = RolloutExchanges(written(tmp_path / "rollouts.jsonl", MIXED), 1.0)
    assert (found.tally.num_rows, found.tally.num_used) == (11, 4)
    assert found.tally.left_out == Counter(
        {
            "it failed or is unresolved": 2,
            "its reward is below 1": 1,
            "it has no reward": 1,
            "its reward is not a number": 1,
            "its answer was cut off": 1,
            "a message has no role that is known": 1,
        }
    )
    assert found.tally.places["its reward is below 1"] == ["rollouts.jsonl line 3"]
    assert [completion[0].content for _, completion, _ in found] == ["01259", "12", "56", "01259"]


@pytest.mark.parametrize("name", ["rollouts", "rollouts.parquet", "rollouts.jsonl"])
def test_the_exchanges_are_the_same_from_each_format(tmp_path: Path, name: str) -> None:
    found = list(RolloutExchanges(written(tmp_path / name, [a_row(), a_row("21=", "12"), a_row(reward=0.2)]), 1.0))
    assert found == [
        ((Message(role="user", content="52910="),), (Message(role="assistant", content="01259"),), ()),
        ((Message(role="user", content="21="),), (Message(role="assistant", content="12"),), ()),
    ]


def test_without_a_bound_every_reward_will_do_but_none_will_not() -> None:
    assert conversation_of(a_row(reward=-1.0), None).completion[0]["content"] == "01259"
    with pytest.raises(UnusableRowError, match="no reward"):
        conversation_of(a_row(reward=None), None)


def test_tool_calls_to_imitate_are_left_out_and_those_before_the_answer_are_kept(tmp_path: Path) -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "sort", "arguments": {"digits": "21"}}}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = {"role": "tool", "content": "12", "tool_call_id": "call-1"}
    path = tmp_path / "rollouts.jsonl"
    within = a_row(completion=[asking, answered, {"role": "assistant", "content": "12"}])
    before = a_row(prompt=[{"role": "user", "content": "21="}, asking, answered])
    found = RolloutExchanges(written(path, [within, before]), None)
    [(prompt, _, _)] = found
    assert prompt[1].tool_calls[0].arguments == '{"digits": "21"}'
    assert prompt[2].tool_call_id == "call-1"
    assert found.tally.left_out == {"its answer holds tool calls or reasoning apart from its text": 1}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"prompt": [{"role": ["user"], "content": "x"}], "response": "y", "reward": 1}', "a message has no role"),
        ('{"prompt": [{"role": {"a": 1}, "content": "x"}], "response": "y", "reward": 1}', "a message has no role"),
        ('{"prompt": "x", "response": "y", "reward": 1e999}', "it has no reward"),
        ('{"prompt": "x", "response": "y", "reward": NaN}', "it has no reward"),
        ('{"prompt": "x", "response": 7, "reward": 1}', "its messages are neither text nor"),
        ('{"prompt": "x", "response": null, "reward": 1}', "it has neither `completion` nor `response`"),
        ('{"prompt": "x", "reward": 1}', "it has neither `completion` nor `response`"),
        ('{"response": "y", "reward": 1}', "it has neither `prompt` nor `messages`"),
        ('{"prompt": "\x00", "response": "y", "reward": 1}', "it can't be read"),
        ('{"prompt": "x", "resp', "it can't be read"),
        (
            '{"prompt": [{"role": "user", "content": "x", "a": ' + "[" * 700 + "]" * 700 + '}], "response": "y",'
            ' "reward": 1}',
            "it can't be read",
        ),
    ],
    ids=range(11),
)
def test_a_malformed_row_is_left_out_with_its_reason_and_the_rest_is_used(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(a_row())}\n{line}\n{json.dumps(a_row())}\n")
    found = RolloutExchanges(path, None)
    assert len(list(found)) == 2
    [left_out] = found.tally.left_out
    assert left_out.startswith(why)
    assert found.tally.places[left_out] == ["rollouts.jsonl line 2"]


def test_a_directory_without_a_usable_row_is_an_error_that_says_why(tmp_path: Path) -> None:
    path = written(tmp_path / "rollouts", [a_row(reward=0.2), a_row(reward=0.25)])
    with pytest.raises(ConfigurationError, match=r"no row to learn from, of 2: 2 left out: its reward is below 1 "):
        RolloutExchanges(path, 1.0)


def on_the_cpu(**fields: Any) -> Any:
    return imitating(device="cpu", threads=1, **fields)


def settings_of(tmp_path: Path, **fields: Any) -> SftSettings:
    source = tmp_path / "source"
    if not source.exists():
        write_tiny_model(source, seed=0, hidden=32, layers=2, heads=2, ffn=64, max_length=64)
    values = {"model_path": source, "output": tmp_path / "trained", "learning": on_the_cpu(), "batch_size": 4}
    return SftSettings(**{**values, **fields})


def exchange(*answers: str, prompt: str = "21=") -> Any:
    messages = tuple(
        Message(role="assistant" if place % 2 == 0 else "user", content=text) for place, text in enumerate(answers)
    )
    return (Message(role="user", content=prompt),), messages, ()


def demonstrated(settings: SftSettings, *exchanges: Any) -> Any:
    """What a model of 64 tokens learns from."""
    texts = demonstrations.Texts(settings.model_path)
    return demonstrations.RolloutDemonstrations(exchanges, texts, settings, max_tokens=64)


def test_the_labels_are_the_answers_tokens_and_the_stop_token_alone(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, epochs=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model_path)
    source = demonstrated(settings, exchange("12"))
    [one] = source
    given, answer = tokenizer("21=").input_ids, tokenizer("12").input_ids
    assert one.prompt_token_ids.tolist() == given
    assert one.token_ids.tolist() == [*answer, tokenizer.eos_token_id]
    assert one.loss_mask.tolist() == [True] * 3


def test_an_answer_teaches_no_control_token_but_the_stop_token_at_its_end(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, epochs=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model_path)
    source = demonstrated(settings, exchange("1<eos>2", prompt="2<eos>1="))
    [one] = source
    assert tokenizer.eos_token_id in tokenizer("1<eos>2").input_ids, "transformers reads it as the stop token"
    assert one.token_ids.tolist().index(tokenizer.eos_token_id) == len(one.token_ids) - 1
    assert tokenizer.eos_token_id not in one.prompt_token_ids
    assert tokenizer.decode(one.token_ids.tolist()[:-1]) == "1<eos>2"


def test_each_assistant_message_of_an_answer_is_learned_after_all_before_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, epochs=1)
    source = demonstrated(settings, exchange("1", "and?", "2"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model_path)
    assert [(tokenizer.decode(one.prompt_token_ids), one.token_ids.tolist()[:-1]) for one in source] == [
        ("21=", tokenizer("1").input_ids),
        ("21=1and?", tokenizer("2").input_ids),
    ]


def test_answers_that_are_too_long_for_the_model_are_counted_and_all_of_them_are_an_error(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, epochs=2)
    source = demonstrated(settings, exchange("1"), exchange("1" * 90))
    assert len(list(source)) == 2
    assert source.left_out == {"longer than 64 tokens": 1}
    with pytest.raises(ConfigurationError, match="1 x longer than 64 tokens"):
        list(demonstrated(settings, exchange("1" * 90)))


def test_each_pass_has_every_exchange_once_in_another_order() -> None:
    orders = [list(demonstrations.shuffled(range(5000), seed)) for seed in (0, 1, 1)]
    assert [sorted(order) for order in orders] == [list(range(5000))] * 3
    assert orders[1] == orders[2] != orders[0] != list(range(5000))


def test_training_on_rollouts_lowers_the_loss_and_ends_after_its_passes(tmp_path: Path) -> None:
    rows = [exchange("".join(sorted(digits)), prompt=f"{digits}=") for digits in ("21", "43", "95", "70", "64", "31")]
    first = sft.run_sft(settings_of(tmp_path, epochs=1, learning=on_the_cpu(warmup_steps=0)), rows)
    later = sft.run_sft(settings_of(tmp_path, epochs=30, learning=on_the_cpu(warmup_steps=0)), rows)
    # 6 exchanges in batches of 4, which go on over the passes.
    assert (first.num_steps, later.num_steps) == (2, 45)
    assert later.loss < first.loss - 1.0


def test_the_command_trains_on_a_directory_and_says_what_it_left_out(tmp_path: Path) -> None:
    rollouts = written(tmp_path / "rollouts", [a_row(), a_row("21=", "12"), a_row(reward=0.2)])
    words = ["--tiny-model", "--rollouts", str(rollouts), "--min-reward", "1.0", "--max-steps", "2", "--threads", "1"]
    ended = CliRunner().invoke(command, [*words, "--output", str(tmp_path / "model")])
    assert ended.exit_code == 0, ended.output
    assert "2 of 3 rows are used" in ended.output
    assert "1 left out: its reward is below 1 (rollouts row 2)" in ended.output
    assert (tmp_path / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--environment", "sort_digits", "--min-reward", "1"],
        ["--environment", "sort_digits", "--epochs", "1"],
        ["--rollouts", ".", "--environment", "sort_digits"],
        ["--rollouts", ".", "--until-accuracy", "0.5"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, words: list[str]) -> None:
    assert CliRunner().invoke(command, ["--tiny-model", "--output", str(tmp_path), *words]).exit_code == 2


@pytest.mark.parametrize("words", [("sft",), ("verifiers", "export-sft")])
def test_the_help_names_no_bound_where_there_is_none(words: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(cli, [*words, "--help"])
    assert "--min-reward" in ended.output
    assert "None" not in ended.output


def test_the_tally_names_only_the_first_places() -> None:
    tally = RowCounts(num_rows=9)
    for row in range(9):
        tally.leave_out("it has no reward", f"row {row}")
    assert tally.lines() == [
        "0 of 9 rows are used",
        "9 left out: it has no reward (row 0, row 1, row 2, row 3, row 4, …)",
    ]
