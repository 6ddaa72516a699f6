"""Demonstrations out of files, rows and the hub: the answer's tokens train, and what is left out is counted."""

import json
import os
import subprocess
import sys

import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.errors import ConfigurationError
from tests.harness.fake_hub import FakeHub, fake_hub
from tests.harness.late import Late

sft = Late("rollstream.training.datasets.sft")
transformers = Late("transformers")
datasets = Late("datasets")

ASKED, ANSWERED = {"role": "user", "content": "what is 1+1?"}, {"role": "assistant", "content": "2"}
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
- config_name: socratic
  data_files: [{split: train, path: socratic/train.jsonl}]
---
"""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return path


@pytest.fixture(scope="module")
def tokenizer(model_path):
    return transformers.AutoTokenizer.from_pretrained(model_path)


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def gsm8k(number):
    return {"question": f"what is {number}+1?", "answer": f"{number}+1=<<{number + 1}>>\n#### {number + 1}"}


def text_of(tokenizer, sample):
    """What is given, and what is imitated."""
    first = sample.loss_mask.index(1.0)
    return tokenizer.decode(sample.tokens[:first]), tokenizer.decode(sample.tokens[first:])


def test_gsm8k_comes_from_the_hub_by_the_name_that_people_know(model_path, tmp_path):
    files = {
        "README.md": CARD.encode(),
        "main/train.jsonl": lines(gsm8k(1), {"question": "x" * 90, "answer": "too long"}, gsm8k(2), gsm8k(3)),
        "main/test.jsonl": lines(gsm8k(7)),
        "socratic/train.jsonl": lines(gsm8k(8)),
    }
    hub = FakeHub(
        repositories={"openai/gsm8k": {"a" * 40: files}},
        heads={"openai/gsm8k": {"main": "a" * 40}},
        moved={"gsm8k": "openai/gsm8k"},
    )
    load = """
import json, logging, sys
from transformers import PreTrainedTokenizerFast
from rollstream.training import load_sft_dataset
logging.basicConfig()
options = json.loads(sys.argv[2])
samples = load_sft_dataset(tokenizer=PreTrainedTokenizerFast.from_pretrained(sys.argv[1]), **options)
print(json.dumps([sample.response for sample in samples]))
"""
    options = {"name": "gsm8k", "split": "train", "subset": "main", "max_samples": 2, "max_length": 80}
    with fake_hub(hub):
        found = subprocess.run(
            [sys.executable, "-c", load, model_path, json.dumps(options)],
            env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)},
            capture_output=True, text=True, check=True, timeout=200,
        )  # fmt: skip
    assert json.loads(found.stdout) == [gsm8k(1)["answer"], gsm8k(2)["answer"]]
    assert "1 x longer than 80 tokens" in found.stderr
    assert all("test" not in file and "socratic" not in file for file in hub.fetched)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "what is 1+1?", "completion": "2"},
        {"prompt": "what is 1+1?", "response": "2"},
        {
            "prompt": [{"role": "user", "content": "what is 1+1?"}],
            "completion": [{"role": "assistant", "content": "2"}],
        },
        {"messages": [{"role": "user", "content": "what is 1+1?"}, {"role": "assistant", "content": "2"}]},
        {"question": "what is 1+1?", "answer": "2"},
    ],
)
def test_all_forms_of_a_row_give_the_same_sample(tmp_path, tokenizer, row):
    (tmp_path / "rows.jsonl").write_bytes(lines(row))
    (sample,) = sft.load_sft_dataset(tmp_path / "rows.jsonl", tokenizer=tokenizer)
    assert (sample.prompt, sample.response) == ([ASKED], "2")
    assert text_of(tokenizer, sample) == ("what is 1+1?", "2<eos>")
    assert sample.loss_mask == [0.0] * len("what is 1+1?") + [1.0] * 2
    assert sample.reward is None


def test_each_answer_of_a_chat_is_a_sample_after_all_before_it(tokenizer):
    roles = ("user", "assistant", "user", "assistant")
    rows = [{"messages": [{"role": role, "content": f"{place}"} for place, role in enumerate(roles)]}]
    samples = sft.load_sft_dataset(rows, tokenizer=tokenizer)
    assert [text_of(tokenizer, sample) for sample in samples] == [("0", "1<eos>"), ("012", "3<eos>")]


def test_parquet_a_saved_data_set_its_split_and_one_in_memory_are_read_alike(tmp_path, tokenizer, model_path):
    rows = datasets.Dataset.from_list([{"prompt": "1=", "completion": "1"}, {"prompt": "2=", "completion": "2"}])
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(tmp_path / "splits")
    found = [
        sft.load_sft_dataset(rows, tokenizer=tokenizer),
        sft.load_sft_dataset(str(tmp_path / "rows.parquet"), tokenizer=model_path, split="train"),
        sft.load_sft_dataset(tmp_path / "saved", tokenizer=tokenizer),
        sft.load_sft_dataset(tmp_path / "splits", tokenizer=tokenizer, split="train"),
    ]
    assert found[1:] == found[:1] * 3
    assert len(found[0]) == 2
    assert found[0][1:] == sft.load_sft_dataset(tmp_path / "splits", tokenizer=tokenizer, split="test")


def test_no_text_becomes_a_control_token(tokenizer):
    rows = [{"prompt": "a<eos>b", "completion": "c<eos><pad>d"}]
    (sample,) = sft.load_sft_dataset(rows, tokenizer=tokenizer)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert eos in tokenizer("a<eos>b").input_ids, "transformers reads it as the stop token"
    assert [token for token in sample.tokens if token in (eos, pad)] == [eos]
    assert sample.tokens[-1] == eos


def test_a_template_that_was_set_in_memory_counts(model_path):
    changed = transformers.AutoTokenizer.from_pretrained(model_path)
    changed.chat_template = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    (sample,) = sft.load_sft_dataset([{"prompt": "1=", "completion": "1"}], tokenizer=changed)
    assert text_of(changed, sample) == ("[1=]", "1<eos>")


def test_what_is_left_out_is_counted_and_told(tmp_path, tokenizer, caplog):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        lines(
            {"prompt": "1=", "completion": "1"},
            {"prompt": "1=" * 9, "completion": "1"},
            {"prompt": "1="},
            {"completion": "1"},
            {"prompt": [{"role": "wizard", "content": "1="}], "completion": "1"},
            {"prompt": "1=", "completion": [call]},
            {"prompt": "1=", "completion": [{"role": "user", "content": "1"}]},
        )
        + b"no JSON\n"
    )
    assert len(sft.load_sft_dataset(path, tokenizer=tokenizer, max_length=16)) == 1
    told = caplog.messages[-1]
    bad_rows = (
        "2 x nothing is asked",
        "no role that is known",
        "tool calls",
        "no answer of an",
        "1 x it can't be read",
    )
    for reason in (*bad_rows, "longer than 16 tokens"):
        assert reason in told
    assert str(path) in told


def test_rows_of_which_none_can_be_used_are_refused_with_the_reasons(tokenizer):
    with pytest.raises(ConfigurationError, match=r"list .*2 x nothing is asked.*prompt and a completion"):
        sft.load_sft_dataset([{"text": "a"}, {"instruction": "b", "output": "c"}], tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_samples": 0}, "max_samples is 0"),
        ({"max_length": -1}, "max_length is -1"),
        ({"split": "validation"}, "'validation'"),
        ({"subset": "main"}, "'main'"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(tmp_path, tokenizer, options, named):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines({"prompt": "1=", "completion": "1"}))
    with pytest.raises(ConfigurationError, match=named):
        sft.load_sft_dataset(path, tokenizer=tokenizer, **options)


@pytest.mark.parametrize("name", ["gone.jsonl", "/gone/train", "a/b/c", "hf://team/plain@main?split=x&x=1"])
def test_a_name_of_nothing_is_refused_without_asking_the_hub(name, tokenizer):
    with pytest.raises(ConfigurationError, match=name[-10:].replace("?", r"\?")):
        sft.load_sft_dataset(name, tokenizer=tokenizer)


def test_split_and_subset_are_of_names_alone(tokenizer):
    with pytest.raises(ConfigurationError, match="subset 'main'"):
        sft.load_sft_dataset([{"prompt": "1=", "completion": "1"}], tokenizer=tokenizer, subset="main")
