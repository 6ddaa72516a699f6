"""Data sets on the Hugging Face hub as a source, on a small fake of its HTTP API."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from rollstream.cli.analyze_rewards import command as analyze_rewards
from rollstream.rows.hub import HubName
from rollstream.rows.open import open_rows
from rollstream.schemas.errors import ConfigurationError
from tests.harness.collecting import noted_facts
from tests.harness.fake_hub import FakeHub, fake_hub
from tests.harness.fake_openai import fake_openai
from tests.harness.hub_reader import Opened, opened

OLD, NEW = "a" * 40, "b" * 40
TOKEN = "hf_of-this-test-only"
CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/*.jsonl
- config_name: other
  data_files:
  - split: train
    path: other/*.jsonl
---
Two sets of rows.
"""
ELSEWHERE = "---\nconfigs:\n- config_name: main\n  data_files: {path}\n---\n"


def parquet(*prompts: str) -> bytes:
    stream = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"prompt": prompt} for prompt in prompts]), stream)
    return stream.getvalue()


def lines(*prompts: str) -> bytes:
    return b"".join(json.dumps({"prompt": prompt}).encode() + b"\n" for prompt in prompts)


def a_hub(**fields: Any) -> FakeHub:
    """Two commits of `team/plain`; the others have one."""
    single: dict[str, Mapping[str, bytes]] = {
        "team/configs": {
            "README.md": CARD.encode(),
            "main/b.jsonl": lines("m2"),
            "main/a.jsonl": lines("m0", "m1"),
            "other/a.jsonl": lines("o0"),
        },
        "team/tables": {"train.csv": b"prompt\nc0\n"},
        "team/script": {"script.py": b"raise SystemExit('this code ran')", "train.jsonl": lines("s0")},
        "team/web": {"README.md": ELSEWHERE.format(path="http://127.0.0.1:1/train.jsonl").encode()},
        "team/disk": {"README.md": ELSEWHERE.format(path="/etc/*.jsonl").encode()},
        "team/closed": {"train.jsonl": lines("c0")},
    }
    plain = {
        OLD: {
            "data/train-00001-of-00002.parquet": parquet("p2"),
            "data/train-00000-of-00002.parquet": parquet("p0", "p1"),
            "data/test-00000-of-00001.parquet": parquet("t0"),
        },
        NEW: {"data/train-00000-of-00001.parquet": parquet("n0")},
        "c" * 40: {"default/train/0000.parquet": parquet("d0"), "other/train/0000.parquet": parquet("d1")},
    }
    return FakeHub(
        repositories={"team/plain": plain, **{name: {OLD: files} for name, files in single.items()}},
        heads={
            "team/plain": {"main": OLD, "next": NEW, "refs/convert/parquet": "c" * 40},
            **{name: {"main": OLD} for name in single},
        },
        gated=frozenset({"team/closed"}),
        **fields,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    """What came of each source; one process opens all, since the libraries take seconds to import."""
    sources = [
        "team/plain",
        "team/plain?split=test",
        "team/plain@next",
        f"team/plain@{NEW}?split=train",
        "team/plain@refs/convert/parquet?config=other",
        "team/plain?split=validation",
        "team/plain@gone",
        "team/configs",
        "team/configs?config=main",
        "team/tables",
        "team/script",
        "team/web",
        "team/disk",
        "team/closed",
        "team/missing",
    ]
    with fake_hub(a_hub()) as hub:
        asked = [(f"hf://{source}", "") for source in sources]
        results = opened(hub.url, tmp_path_factory.mktemp("hub"), *asked)
        fetched = [file for file in hub.fetched if file.endswith((".parquet", ".jsonl"))]
    assert len(fetched) == len(set(fetched)) == 7
    return dict(zip(sources, results, strict=True))


@pytest.mark.parametrize(
    ("source", "prompts", "identity"),
    [
        # In the order of the files' names.
        ("team/plain", ["p0", "p1", "p2"], f"hf://team/plain@{OLD}?split=train"),
        ("team/plain?split=test", ["t0"], f"hf://team/plain@{OLD}?split=test"),
        # A branch, a commit, and the hub's own parquet copy.
        ("team/plain@next", ["n0"], f"hf://team/plain@{NEW}?split=train"),
        (f"team/plain@{NEW}?split=train", ["n0"], f"hf://team/plain@{NEW}?split=train"),
        (
            "team/plain@refs/convert/parquet?config=other",
            ["d1"],
            f"hf://team/plain@{'c' * 40}?split=train&config=other",
        ),
        ("team/configs?config=main", ["m0", "m1", "m2"], f"hf://team/configs@{OLD}?split=train&config=main"),
    ],
)
def test_a_split_of_a_revision_is_read_with_its_commit_as_identity(
    found: dict[str, Opened], source: str, prompts: list[str], identity: str
) -> None:
    opened_source = found[source]
    assert (opened_source.prompts, opened_source.identity) == (prompts, identity)
    assert [row[0] for row in opened_source.rows] == list(range(len(prompts)))
    assert opened_source.num_rows == len(prompts)
    if source == "team/plain":
        assert opened_source.rows[2][1] == "train-00001-of-00002.parquet row 0"


def test_a_name_is_written_as_it_is_read() -> None:
    full = HubName(repository="a/b", revision="refs/pr/1", split="test", config="a+b c")
    assert HubName.read(str(full)) == HubName.read(str(Path(str(full)))) == full


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("team/plain?split=validation", "has no split 'validation', only train, test: name one"),
        ("team/plain@gone", "hf://team/plain@gone?split=train: it has no such revision; name a branch, a tag"),
        ("team/configs", "pick one among the available configs: ['main', 'other']"),
        ("team/tables", "is of .csv files; those of .parquet or of .jsonl can be read"),
        ("team/script", "Dataset scripts are no longer supported, but found script.py"),
        ("team/web", "its card names files outside of it, 'http://127.0.0.1:1/train.jsonl'"),
        ("team/disk", "its card names files outside of it, '/etc/*.jsonl'"),
        ("team/closed", "hf://team/closed?split=train: access is granted one by one: ask for it on its page"),
        ("team/missing", "hf://team/missing?split=train: the hub has no such data set, or your token may not see it"),
    ],
)
def test_what_the_hub_does_not_give_is_refused_with_what_to_change(
    found: dict[str, Opened], source: str, words: str
) -> None:
    assert words in found[source].error
    assert not found[source].rows


def test_a_name_without_revision_means_the_commit_that_an_output_was_begun_with(tmp_path: Path) -> None:
    with fake_hub(a_hub()) as hub:
        hub.heads["team/plain"]["main"] = NEW
        begun = f"hf://team/plain@{OLD}?split=train"
        asked = [("hf://team/plain", begun), ("hf://team/plain", ""), ("hf://team/plain@main", begun)]
        asked += [("hf://team/plain?split=test", begun), ("hf://team/plain", "rows.jsonl@0123456789ab")]
        kept, moved, named, other, foreign = opened(hub.url, tmp_path, *asked)
    assert kept.identity == begun
    assert kept.prompts == ["p0", "p1", "p2"]
    assert moved.identity == named.identity == foreign.identity == f"hf://team/plain@{NEW}?split=train"
    assert "no split 'test'" in other.error


def test_no_network_and_a_broken_hub_are_told_without_the_token(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        [away] = opened(f"http://127.0.0.1:{nobody.getsockname()[1]}", tmp_path, ("hf://team/plain", ""), token=TOKEN)
    assert away.error.startswith("hf://team/plain?split=train: the hub can't be reached, ConnectError; go online")
    with fake_hub(a_hub(is_broken=True)) as hub:
        [broken] = opened(hub.url, tmp_path, ("hf://team/plain", ""), token=TOKEN)
    assert broken.error.startswith("hf://team/plain?split=train: it can't be read, HfHubHTTPError: ")
    assert "no luck with Bearer ***" in broken.error
    assert TOKEN not in broken.error + away.error


@pytest.mark.parametrize(
    "source",
    ["hf://plain", "hf://a/b/c", "hf://a/b?", "hf://a/b?x=1", "hf://a/b?split=x&split=y", "hf://a/b?split=", "hf:/"],
)
def test_what_is_no_name_on_the_hub_is_refused(source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"hf:/") as refused:
        open_rows(Path(source))
    assert "split" in str(refused.value)


@pytest.mark.parametrize("source", ["team/plain", "datasets/team/plain", "HF://team/plain", "./rows.jsonl"])
def test_without_the_prefix_a_missing_file_is_a_missing_file(source: str) -> None:
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        open_rows(Path(source))


def said_by(hub: FakeHub, directory: Path, *words: str) -> str:
    """What the command says, in a process of its own."""
    command = [sys.executable, "-m", "rollstream.cli.main", *words]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(directory / "hub")}
    return subprocess.check_output(command, env=environment, cwd=directory, text=True, timeout=200)


def test_generate_rollouts_asks_the_prompts_of_a_data_set_on_the_hub(tmp_path: Path) -> None:
    words = ["generate-rollouts", "--data_path", "hf://team/plain", "--use_vllm", "--model_path", "tiny"]
    words += ["--num_samples", "2", "--output_path", "out.jsonl", "--vllm_base_url"]
    with fake_hub(a_hub()) as hub, fake_openai() as server:
        said_by(hub, tmp_path, *words, server.url)
    asked = sorted(one.body["messages"][0]["content"] for one in server.asked)
    assert asked == ["p0", "p0", "p1", "p1", "p2", "p2"]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 6
    begun_with = noted_facts(tmp_path / "out.jsonl_progress.sqlite")["begun_with"]
    assert begun_with["input"] == f"hf://team/plain@{OLD}?split=train"


def test_collect_goes_on_with_the_commit_that_it_began_with(tmp_path: Path) -> None:
    words = ["collect", "hf://team/plain", "--model", "tiny", "--output", "out.jsonl", "--url"]
    with fake_hub(a_hub()) as hub, fake_openai() as server:
        said = []
        for head in (OLD, NEW):
            hub.heads["team/plain"]["main"] = head
            said.append(said_by(hub, tmp_path, *words, server.url))
    assert "3 samples of 3 tasks: 3 completed" in said[0]
    assert "out.jsonl is complete: nothing is left to ask" in said[1]
    assert len(server.asked) == 3


def test_scores_of_rows_on_the_hub_need_an_output_that_is_named() -> None:
    result = CliRunner().invoke(analyze_rewards, ["--rollouts", "hf://team/plain", "--reward_fn", "math"])
    assert "name one with --output" in str(result.exception)
