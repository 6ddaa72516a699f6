"""Every command that reads rows reads the same messages and the same reference in them."""

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.offline.compare.examples import example_key
from rollstream.offline.convert.conversations import export_for_sft
from rollstream.offline.convert.verifiers_runs import export_run, import_run
from rollstream.offline.difficulty.judged_row import RowJudge
from rollstream.offline.ended import EndedSample
from rollstream.offline.options import ExportOptions, SftExportOptions
from rollstream.offline.output import rollout_columns
from rollstream.offline.tasks import CollectTask, file_tasks, task_of
from rollstream.producers.sources.jsonl import JsonlSource
from rollstream.producers.sources.parquet import ParquetSource
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from rollstream.rows.write import Kind, write_rows
from rollstream.schemas.errors import ConfigurationError, DecodeError, UnusableRowError
from tests.harness.collecting import lines_of, settings_for
from tests.harness.fake_openai import fake_openai
from tests.harness.scoring import put_own_rewards, scored

Row = dict[str, Any]
Said = tuple[list[tuple[str, str]] | None, str | None]
"""Role and content of each message, None if the row can't be asked; and the reference."""

TEXT: Final = "How many?"
CHAT: Final = [{"role": "system", "content": "Count."}, {"role": "user", "content": TEXT}]
VERL: Final = {"style": "rule", "ground_truth": "72"}
SOLUTION: Final = "48 / 2 = 24.\n3*24=72\n#### 72"
CALL: Final = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TOOLS: Final = [
    *CHAT,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "72", "tool_call_id": "c"},
]
PARTS: Final = [{"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "many?"}]}]
THOUGHT: Final = [*CHAT, {"role": "assistant", "content": "72", "reasoning_content": "3*24"}, CHAT[1]]
IMAGE: Final = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]


@dataclass(frozen=True)
class Case:
    """A row, and what all say of it. `asked`: the prompt as the row has it; None: nothing that can be asked."""

    row: Row
    asked: Any = TEXT
    reference: str | None = None

    @property
    def said(self) -> Said:
        if self.asked is None:
            return None, self.reference
        chat = [{"role": "user", "content": self.asked}] if isinstance(self.asked, str) else self.asked
        return [_told(message) for message in chat], self.reference


def verl(**fields: Any) -> Row:
    extra = {"split": "train", "index": 0, "answer": SOLUTION, "question": TEXT}
    return {
        "data_source": "openai/gsm8k", "prompt": CHAT, "ability": "math", "reward_model": VERL, "extra_info": extra,
        **fields,
    }  # fmt: skip


CASES: Final = {
    # The five of which producers, `collect` and `analyze-rewards` said different things.
    "a solution and its result": Case({"prompt": TEXT, "answer": "3*24=72 #### 72"}, reference="72"),
    "verl beside an answer": Case(
        {"prompt": CHAT, "reward_model": VERL, "answer": "x #### 72"}, asked=CHAT, reference="72"
    ),
    "two references": Case({"prompt": TEXT, "reference_answer": "A", "ground_truth": "B"}, reference="A"),
    "a ground truth": Case({"prompt": TEXT, "ground_truth": "B"}, reference="B"),
    "messages": Case({"messages": CHAT, "answer": "72"}, asked=CHAT, reference="72"),
    # Formats in use.
    "verl": Case(verl(), asked=CHAT, reference="72"),
    "verl with JSON text": Case(verl(reward_model=json.dumps(VERL)), asked=CHAT, reference="72"),
    "verl of a number": Case(verl(reward_model={"ground_truth": 72}), asked=CHAT, reference="72"),
    "verl of spellings": Case(
        {"prompt": TEXT, "reward_model": {"ground_truth": ["Paris", "paris"]}}, reference='["Paris", "paris"]'
    ),
    "verl without a rule": Case(verl(reward_model=None), asked=CHAT, reference="72"),
    "verl's own extra": Case({"prompt": TEXT, "extra_info": {"ground_truth": "72", "answer": "no"}}, reference="72"),
    "GSM8K": Case({"prompt": TEXT, "question": TEXT, "answer": SOLUTION}, reference="72"),
    "a solution with headings": Case(
        {"prompt": TEXT, "answer": "#### First\nAdd.\nIt is 72."}, reference="#### First\nAdd.\nIt is 72."
    ),
    "a ground truth with a mark": Case({"prompt": TEXT, "ground_truth": "a #### b"}, reference="a #### b"),
    "Gym": Case(
        {"responses_create_params": {"input": CHAT, "tools": []}, "expected_answer": "72"}, asked=CHAT, reference="72"
    ),
    "Gym with a text": Case({"responses_create_params": {"input": TEXT}, "expected_answer": 72}, reference="72"),
    "verifiers": Case({"example_id": 3, "prompt": CHAT, "answer": "72", "info": {}}, asked=CHAT, reference="72"),
    "generate-rollouts": Case(
        {"prompt": TEXT, "sample_idx": 0, "data_idx": 1, "original_answer": SOLUTION, "original_id": "7"},
        reference="72",
    ),
    "generate-rollouts of verl": Case({"prompt": TEXT, "original_reward_model": json.dumps(VERL)}, reference="72"),
    "generate-rollouts of two": Case(
        {"prompt": TEXT, "original_reward_model": VERL, "original_answer": "another text"}, reference="72"
    ),
    "an extra before the truth": Case(
        {"prompt": TEXT, "original_extra_info": {"answer": "half a page"}, "original_ground_truth": 72}, reference="72"
    ),
    "an extra as JSON text": Case({"prompt": TEXT, "original_extra_info": '{"ground_truth": 72}'}, reference="72"),
    "JSON text that is none": Case({"prompt": TEXT, "original_reward_model": "no JSON {"}),
    "JSON text of a list": Case({"prompt": TEXT, "original_extra_info": "{" * 9999, "original_reward_model": "[1]"}),
    "replay": Case({"prompt": CHAT, "reference_answer": "72", "metadata": {"a": "b"}}, asked=CHAT, reference="72"),
    # Chats.
    "tools": Case({"messages": TOOLS, "answer": 72}, asked=TOOLS, reference="72"),
    "tools in a prompt": Case({"prompt": TOOLS, "tools": '[{"type": "function"}]'}, asked=TOOLS),
    "parts": Case({"prompt": PARTS, "answer": 0.5}, asked=PARTS, reference="0.5"),
    "a speaker": Case({"messages": [{**CHAT[1], "name": "ann"}]}, asked=[{**CHAT[1], "name": "ann"}]),
    "a thought": Case({"messages": THOUGHT}, asked=THOUGHT),
    "prompt and messages": Case({"prompt": TEXT, "messages": CHAT}),
    # Absent and blank.
    "no reference": Case({"prompt": TEXT}),
    "blank references": Case(
        {"prompt": TEXT, "reference_answer": "", "ground_truth": " \n", "answer": "72"}, reference="72"
    ),
    "only blanks": Case({"prompt": TEXT, "reference_answer": "", "answer": "It is #### "}),
    "a null reference": Case({"prompt": TEXT, "reference_answer": None, "reward_model": {"ground_truth": None}}),
    "zero": Case({"prompt": TEXT, "answer": 0}, reference="0"),
    "false": Case({"prompt": TEXT, "answer": False}, reference="false"),
    "a blank prompt beside messages": Case({"prompt": " ", "messages": CHAT}, asked=CHAT),
    "nothing asked": Case({"answer": "72"}, asked=None, reference="72"),
    "a blank prompt": Case({"prompt": "\n", "answer": "72"}, asked=None, reference="72"),
    "no messages": Case({"messages": [], "answer": "72"}, asked=None, reference="72"),
    "a number as prompt": Case({"prompt": 7, "answer": "72"}, asked=None, reference="72"),
    "a message without content": Case({"prompt": [{"role": "user"}], "answer": "72"}, asked=None, reference="72"),
    "an unknown role": Case({"prompt": [{"role": "robot", "content": "x"}]}, asked=None),
    "an image": Case({"prompt": IMAGE}, asked=None),
}
FILES: Final[list[tuple[str, Kind]]] = [("rows.jsonl", "jsonl"), ("rows.parquet", "parquet")]
EACH: Final = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def _told(message: Row) -> tuple[str, str]:
    content = message.get("content") or ""
    return message["role"], content if isinstance(content, str) else "".join(part["text"] for part in content)


def _of(found: Any) -> Said:
    return [(message.role, message.content) for message in found.messages], found.reference_answer


def _written(path: Path, kind: Kind, row: Row) -> Path:
    with write_rows(path, kind) as writer:
        writer.write(row)
    return path


def _answered(row: Row) -> Row:
    return {"response": "It is 72.", "reward": 1.0, **row}


@pytest.mark.parametrize(("name", "kind"), FILES)
@EACH
def test_a_producer_and_collect_ask_what_the_table_says(case: Case, name: str, kind: Kind, tmp_path: Path) -> None:
    path = _written(tmp_path / name, kind, case.row)
    [task] = file_tasks(open_rows(path), prompt_key="prompt")
    produced: Callable[..., Any] = JsonlSource if kind == "jsonl" else ParquetSource
    if case.asked is None:
        assert not isinstance(task, CollectTask)
        with pytest.raises(ConfigurationError, match=name):
            list(produced(path, seed=0).rows(0, 0))
        return
    assert isinstance(task, CollectTask)
    assert _of(task) == case.said
    assert [_of(row) for row in produced(path, seed=0).rows(0, 0)] == [case.said]


@EACH
def test_sft_and_both_exports_give_what_the_table_says(case: Case, tmp_path: Path) -> None:
    path = _written(tmp_path / "rollouts.jsonl", "jsonl", _answered(case.row))
    options = SftExportOptions(rollouts=path, output=tmp_path / "sft.jsonl", layout="messages")
    export_run(ExportOptions(rollouts=path, outputs=tmp_path, env_id="e", model="m", run_id="r"))
    [exported] = lines_of(tmp_path / "evals/e--m/r/results.jsonl")
    assert exported.get("answer") == case.reference
    if case.asked is None:
        with pytest.raises(ConfigurationError, match="no row to learn from"):
            export_for_sft(options)
        return
    export_for_sft(options)
    [learned] = lines_of(tmp_path / "sft.jsonl")
    given = case.said[0] or []
    is_whole = "prompt" not in case.row and any(role == "assistant" for role, _ in given)
    whole = given if is_whole else [*given, ("assistant", "It is 72.")]
    assert [_told(message) for message in learned["messages"]] == whole
    assert [_told(message) for message in [*exported["prompt"], *exported["completion"]]] == whole


@EACH
def test_problems_and_examples_are_told_apart_by_what_the_table_says(case: Case) -> None:
    plain = {"prompt": case.asked, "reference_answer": case.reference, "data_source": case.row.get("data_source")}
    if case.asked is not None:
        assert RowJudge().problem(case.row) == RowJudge().problem(plain)
        assert RowJudge().problem(case.row) != RowJudge().problem({**plain, "reference_answer": "another"})
        assert example_key(case.row, by_id=False) == example_key(plain, by_id=False)
    elif not str(case.row.get("prompt", "")).strip():
        with pytest.raises(DecodeError, match="no prompt"):
            RowJudge().problem(case.row)
        with pytest.raises(UnusableRowError, match="no prompt"):
            example_key(case.row, by_id=False)


def test_a_reward_function_is_given_what_the_table_says_and_the_same_of_what_collect_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = put_own_rewards(tmp_path / "code", monkeypatch)
    expected: dict[str, Said] = {}
    with write_rows(tmp_path / "rollouts.jsonl", "jsonl") as writer:
        for name, case in CASES.items():
            writer.write({**_answered(case.row), "number": name})
            expected[name] = (case.said[0] or [], case.reference)
            task = task_of(ReadRow(0, "", {**case.row, "number": f"collected: {name}"}), "prompt")
            # Columns of rollouts that are asked again have the prefix twice.
            if isinstance(task, CollectTask) and not any(column.startswith("original_") for column in case.row):
                ended = EndedSample(row=0, sample=0, attempts=1, status="completed", response="It is 72.")
                writer.write(rollout_columns(task, ended, settings_for(tmp_path / "out.jsonl")))
                expected[f"collected: {name}"] = case.said
    rows = scored(tmp_path / "rollouts.jsonl", "--reward_fn", "custom", f"{rewards}.noted")
    noted = [json.loads(line) for line in (tmp_path / "code" / "noted").read_text().splitlines()]
    found = {name: ([tuple(one) for one in messages], reference) for name, messages, reference in noted}
    unscored = {row["number"] for row in rows if row["reward"] is None}
    assert {name: said for name, said in expected.items() if name not in unscored} == found
    assert unscored == {"a number as prompt", "a message without content", "an unknown role", "an image"}


# What verifiers itself writes has no other columns.
OF_VERIFIERS = {"prompt", "question", "answer", "tools", "example_id", "info"}


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.asked is not None and case.row.keys() <= OF_VERIFIERS]
)
def test_a_run_of_verifiers_says_the_same_when_it_was_imported(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    result = {**case.row, "example_id": 0, "completion": [{"role": "assistant", "content": "72"}], "reward": 1.0}
    run = _written(tmp_path / "results.jsonl", "jsonl", result)
    import_run(run, tmp_path / "rollouts.jsonl")
    [imported] = file_tasks(open_rows(tmp_path / "rollouts.jsonl"), prompt_key="prompt")
    assert isinstance(imported, CollectTask)
    assert _of(imported) == case.said


@pytest.mark.parametrize(
    "words",
    [
        ["collect", "rows.jsonl", "--model", "tiny", "--output", "out.jsonl", "--url"],
        ["generate-rollouts", "--data_path", "rows.jsonl", "--use_vllm", "--model_path", "tiny", "--num_samples", "1",
         "--output_path", "out.jsonl", "--vllm_base_url"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_server_is_asked_what_the_table_says(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with write_rows(tmp_path / "rows.jsonl", "jsonl") as writer:
        for case in CASES.values():
            writer.write(case.row)
    with fake_openai() as server:
        result = CliRunner().invoke(cli, [*words, server.url])
    assert result.exit_code == 0, (result.output, result.exception)
    asked = [[_told(message) for message in one.body["messages"]] for one in server.asked]
    assert sorted(asked) == sorted(case.said[0] for case in CASES.values() if case.said[0] is not None)


def test_a_column_that_a_person_names_is_asked_and_is_no_reference() -> None:
    fields = {"answer": "It is 72.", "prompt": TEXT, "question": "How many?"}
    task = task_of(ReadRow(0, "", fields), "answer")
    assert isinstance(task, CollectTask)
    assert _of(task) == ([("user", "It is 72.")], None)
    assert task.metadata == {"prompt": TEXT, "question": "How many?"}
    bad = task_of(ReadRow(0, "", fields), "query")
    assert not isinstance(bad, CollectTask)
    assert "'query'" in bad.why


def test_no_other_module_names_a_column_with_the_reference() -> None:
    names = {"reference_answer", "ground_truth", "original_reference_answer", "original_ground_truth"}
    # It calls verl's functions by the names of their parameters.
    allowed = {"services/rollstream/rows/conversation.py", "services/rollstream/offline/scores/custom.py"}
    naming = [
        path
        for folder in ("schemas", "services", "producers", "trainer")
        for path in Path(folder).rglob("*.py")
        if any(isinstance(node, ast.Constant) and node.value in names for node in ast.walk(ast.parse(path.read_text())))
    ]
    assert {str(path) for path in naming} == allowed
