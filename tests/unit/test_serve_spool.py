"""Answers in the spool: kept before they are given, and bounded."""

import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY

from rollstream.generator.serve.spool import Spool
from rollstream.schemas.errors import ConfigurationError, SpoolFullError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status
from tests.harness.builders import a_call
from tests.harness.forking import start_forked
from tests.harness.full_disk import room_for
from tests.harness.spools import a_recorder, spooled
from tests.harness.waits import in_a_loop, wait_until

MIB = 2**20


def outcomes() -> dict[str, float]:
    """How many answers had each outcome since this process began."""
    wanted = ("recorded", "text", "dropped", "unrecorded")
    found = {one: REGISTRY.get_sample_value("rollstream_serve_answers_total", {"outcome": one}) for one in wanted}
    return {name: value or 0.0 for name, value in found.items()}


def change(before: dict[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in outcomes().items() if value != before[name]}


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", "demo", MIB)
    yield spool
    spool.close()


def test_answers_leave_the_spool_oldest_first_and_only_when_they_are_removed(spool: Spool) -> None:
    spool.append([(b"a", b"1"), (b"b", b"2")])
    spool.append([(b"c", b"3")])
    assert [one.value for one in spool.oldest()] == [b"1", b"2", b"3"]
    spool.remove([spool.oldest()[1].number])
    assert [one.key for one in spool.oldest()] == [b"a", b"c"]
    assert spool.num_records == 2


def test_the_age_of_the_oldest_answer_is_that_of_the_one_which_is_published_next(spool: Spool) -> None:
    def oldest() -> float | None:
        return REGISTRY.get_sample_value("rollstream_serve_spool_oldest_timestamp_seconds")

    before = time.time()
    spool.append([(b"a", b"1")])
    spool.append([(b"b", b"2")])
    first, second = spool.oldest()
    assert before <= first.kept_at <= second.kept_at <= time.time()
    assert oldest() == first.kept_at
    spool.remove([first.number])
    assert spool.oldest() == [second]
    assert oldest() == second.kept_at
    spool.remove([second.number])
    assert spool.oldest() == []
    assert oldest() == 0.0


def test_few_large_answers_are_given_out_at_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "demo", 64 * MIB)
    spool.append([(b"k", bytes([number]) * (3 * MIB)) for number in range(4)])
    assert [len(one.value) for one in spool.oldest()] == [3 * MIB, 3 * MIB]
    spool.close()


def test_a_new_process_finds_what_is_in_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "demo", MIB)
    spool.append([(b"k", b"v")])
    spool.close()
    spool = Spool(tmp_path, "demo", MIB)
    assert [(one.key, one.value) for one in spool.oldest()] == [(b"k", b"v")]
    assert spool.num_records == 1
    spool.close()


def test_two_processes_can_not_have_one_spool(spool: Spool, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="another process"):
        Spool(tmp_path / "spool", "demo", MIB)


def test_answers_of_another_run_are_not_published_in_this_one(tmp_path: Path) -> None:
    Spool(tmp_path, "other", MIB).close()
    with pytest.raises(ConfigurationError, match="answers of the run 'other', and this one is 'demo'"):
        Spool(tmp_path, "demo", MIB)


def test_a_damaged_spool_is_moved_aside_and_counted(tmp_path: Path) -> None:
    before = REGISTRY.get_sample_value("rollstream_serve_spool_damaged_total") or 0
    (tmp_path / "answers.sqlite").write_bytes(b"no spool, " * 1000)
    spool = Spool(tmp_path, "demo", MIB)
    spool.append([(b"k", b"v")])
    assert [one.value for one in spool.oldest()] == [b"v"]
    assert (tmp_path / "answers.sqlite.damaged").read_bytes().startswith(b"no spool, ")
    assert REGISTRY.get_sample_value("rollstream_serve_spool_damaged_total") == before + 1
    spool.close()


def test_a_spool_that_is_damaged_inside_is_moved_aside_when_that_shows(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "demo", MIB)
    spool.append([(b"k", bytes(1000)) for _ in range(200)])
    spool.close()
    path = tmp_path / "answers.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:12_288] + os.urandom(len(content) - 12_288))
    spool = Spool(tmp_path, "demo", MIB)
    spool.append([(b"k", b"v")])
    assert [one.value for one in spool.oldest()] == [b"v"]
    spool.close()


def test_the_spool_takes_no_more_than_its_bytes_and_again_when_some_have_left(tmp_path: Path) -> None:
    spool, answer = Spool(tmp_path, "demo", MIB), (b"k", bytes(100_000))
    for _ in range(9):
        spool.append([answer])
    with pytest.raises(SpoolFullError, match=f"of at most {MIB} bytes"):
        spool.append([answer, answer])
    assert spool.num_records == 9
    assert sum(one.stat().st_size for one in tmp_path.glob("answers.sqlite")) <= MIB
    spool.remove([one.number for one in spool.oldest()])
    spool.append([answer])
    spool.close()


def _append_and_say(directory: Path) -> None:
    """Append answers for ever, and say the number of each once it is kept."""
    spool = Spool(directory, "demo", 64 * MIB)
    number = 0
    while True:
        spool.append([(b"k", str(number).encode())])
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


@pytest.mark.usefixtures("forks")
def test_every_answer_that_was_kept_is_there_after_kill_9(tmp_path: Path) -> None:
    log = tmp_path / "kept.log"
    process = start_forked(partial(_append_and_say, tmp_path / "spool"), log=log)
    wait_until(lambda: len(process.said().split()) > 200, "answers to be kept")
    process.kill()
    num_said = len(process.said().split())
    spool, found = Spool(tmp_path / "spool", "demo", 64 * MIB), list[int]()
    while more := spool.oldest():
        found += [int(one.value) for one in more]
        spool.remove([one.number for one in more])
    spool.close()
    assert found == list(range(len(found)))
    # One may have been kept and not said.
    assert num_said <= len(found) <= num_said + 1


@in_a_loop
async def test_calls_are_refused_before_those_in_work_find_no_room(tmp_path: Path) -> None:
    async with a_recorder(tmp_path, spool_bytes=MIB) as recorder:
        before = outcomes()
        while not recorder.is_full:
            recorder.refuse_if_full()
            await recorder.keep(a_call(other_sampling="x" * 50_000))
        with pytest.raises(SpoolFullError):
            recorder.refuse_if_full()
        await recorder.keep(a_call())
        with pytest.raises(SpoolFullError, match="not given"):
            await recorder.keep(a_call(other_sampling="x" * 200_000))
        counted = change(before)
        assert counted["recorded"] == recorder.num_records
        assert counted["unrecorded"] == 1


@in_a_loop
async def test_where_the_settings_say_so_a_full_spool_answers_unrecorded_and_counts_it(tmp_path: Path) -> None:
    async with a_recorder(tmp_path, spool_bytes=MIB, when_spool_is_full="unrecorded") as recorder:
        before = outcomes()
        for _ in range(25):
            recorder.refuse_if_full()
            await recorder.keep(a_call(other_sampling="x" * 50_000))
        counted = change(before)
        assert counted["recorded"] + counted["unrecorded"] == 25
        assert counted["recorded"] == recorder.num_records


@in_a_loop
async def test_a_full_disk_is_handled_as_a_full_spool(tmp_path: Path) -> None:
    async with a_recorder(tmp_path) as recorder:
        await recorder.keep(a_call())
        with room_for(30_000), pytest.raises(SpoolFullError, match="not given"):
            await recorder.keep(a_call(other_sampling="x" * 100_000))
        with pytest.raises(SpoolFullError):
            recorder.refuse_if_full()
        await recorder.keep(a_call("chatcmpl-later"))
        assert [one.served.response_id for one in await spooled(recorder) if one.served] == [
            "chatcmpl-5f0c",
            "chatcmpl-later",
        ]


@in_a_loop
async def test_the_hook_says_what_is_kept_and_one_that_raises_withholds_everything(tmp_path: Path) -> None:
    async with a_recorder(tmp_path, hook="tests.harness.spools.by_its_id") as recorder:
        before = outcomes()
        for response_id in ("keep", "text", "drop", "raise"):
            await recorder.keep(a_call(response_id))
        kept, text = await spooled(recorder)
        assert kept.served
        assert kept.served.response_id == "keep"
        assert len(kept.turns[0].token_ids) == 6
        assert text.served
        assert text.served.response_id == "text"
        assert len(text.turns[0].token_ids) == 0
        assert change(before) == {"recorded": 1, "text": 1, "dropped": 1, "unrecorded": 1}


@in_a_loop
async def test_a_hook_that_would_end_the_process_does_not_break_the_answer(tmp_path: Path) -> None:
    async with a_recorder(tmp_path, hook="tests.harness.spools.leaves") as recorder:
        await recorder.keep(a_call())
        assert recorder.num_records == 0


@in_a_loop
async def test_a_hook_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"serve\.hook = 'nowhere\.hook' cannot be imported"):
        async with a_recorder(tmp_path, hook="nowhere.hook"):
            pass


@in_a_loop
async def test_an_answer_beyond_a_records_bytes_is_recorded_without_its_tokens(tmp_path: Path) -> None:
    choice = a_call().choices[0]
    many = np.zeros(2**20, dtype=np.int32)
    span = choice.weight_spans[0].model_copy(update={"end": len(many)})
    large = type(choice)(
        number=0,
        token_ids=many,
        behavior_logprobs=np.zeros(len(many), dtype=np.float32),
        weight_spans=(span,),
        finish_reason=choice.finish_reason,
        text="x" * 2**20,
    )
    async with a_recorder(tmp_path) as recorder:
        await recorder.keep(a_call(choices=(large,)))
        (rollout,) = await spooled(recorder)
        assert rollout.status is Status.FAILED
        assert rollout.failure
        assert rollout.failure.code is FailureCode.TOO_LARGE
        assert rollout.turns == ()
        assert rollout.served
