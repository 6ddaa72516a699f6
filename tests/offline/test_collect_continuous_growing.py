"""A watched directory whose files grow, with garbage in them, while the collection is killed again and again."""

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from rollstream.cli.collect import command
from rollstream.offline.continuous.production import PROGRESS
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from tests.harness.collecting import lines_of, noted_samples
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.waits import wait_until

ENGINE = """
[generator.engine]
kind = "scripted"
model_path = "no-tokenizer"
[generator.engine.scripted]
token_seconds = 0.01
"""
GARBAGE = [b"\0" * 20, b'{"prompt": ', b"[1]", b"\xff\xfe", b'{"prompt": null}', b"[" * 5000]


def be_collect(*given: str) -> None:
    """Be `rollstream collect GIVEN`."""
    command.main(list(given))


def started(tmp_path: Path, *more: str) -> StartedProcess:
    config = tmp_path / "engine.toml"
    config.write_text(ENGINE)
    given = [
        str(tmp_path / "in"),
        "--output",
        str(tmp_path / "out"),
        "--config",
        str(config),
        "--max-tokens",
        "4",
        "--concurrency",
        "8",
        *more,
    ]
    return start_forked(partial(be_collect, *given), log=tmp_path / "collect.log")


def asked(directory: Path) -> Counter[str]:
    """How often each prompt is in the parts that are finished."""
    parts = [path for path in directory.glob("part-*.jsonl") if path.name.removesuffix(".jsonl")[5:].isdigit()]
    return Counter(row.fields["prompt"] for part in parts for row in open_rows(part) if isinstance(row, ReadRow))


def num_ended(directory: Path) -> int:
    """Samples that ended, also those of parts that are not finished."""
    return asked(directory).total() + len(noted_samples(directory / PROGRESS))


def grow(folder: Path, chance: random.Random, number: int) -> list[str]:
    """Add rows and garbage to one of three files, in pieces that end anywhere."""
    names = [f"{number}-{row}" for row in range(40)]
    lines = [json.dumps({"prompt": name}).encode() for name in names] + [chance.choice(GARBAGE)]
    chance.shuffle(lines)
    with (folder / f"{number % 3}.jsonl").open("ab") as stream:
        content = b"".join(line + b"\n" for line in lines)
        for start in range(0, len(content), 100):
            stream.write(content[start : start + 100])
            stream.flush()
    return names


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("num_kills", [20])
def test_kills_lose_no_row_of_files_that_grow_and_take_none_twice(tmp_path: Path, num_kills: int) -> None:
    chance, wanted = random.Random(11), Counter[str]()
    (tmp_path / "in").mkdir()
    for kill in range(num_kills):
        process = started(tmp_path, "--watch", "--every", "1s")
        for more in range(2):
            wanted.update(grow(tmp_path / "in", chance, 2 * kill + more))
        seen = chance.randint(0, len(wanted))
        wait_until(lambda: num_ended(tmp_path / "out") >= seen or process.has_ended, process.said)  # noqa: B023
        assert not process.has_ended, process.said()
        process.kill()
    (tmp_path / "collect.log").unlink()
    last = started(tmp_path, "--every", "365d", "--watch")
    wait_until(lambda: "the next look at" in last.said() or last.has_ended, last.said)
    assert last.terminate() == 0, last.said()
    assert asked(tmp_path / "out") == wanted
    assert not list((tmp_path / "out").glob(".part*"))
    listed = [row for path in (tmp_path / "out").glob("*_bad_rows.jsonl") for row in lines_of(path)]
    assert len({row["where"] for row in listed}) >= 1
    assert all(row["why"] for row in listed)
