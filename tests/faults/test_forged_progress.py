"""Records that a stranger writes on `producers`: none stops a producer, or takes its credit or its place."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from rollstream.bus.message import OutRecord
from rollstream.bus.reader import TopicReader
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.ids import group_id
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.topics import PRODUCERS
from tests.harness.producer_runs import Run, producing
from tests.harness.waits import wait_until


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(kafka, topic_prefix, tmp_path)
    yield made
    made.publisher.close()
    made.reader.close()


def newest(run: Run, producer: str = "producer") -> ProducerProgress:
    """The newest record of the producer."""
    with TopicReader(run.kafka, [PRODUCERS.of(run.name)]) as reader:
        records = [AvroCodec(PRODUCERS).decode(message.value) for message in reader.to_end()]
    return [record for record in records if record.producer == producer][-1]


def forge(run: Run, record: ProducerProgress) -> None:
    """Write it under its producer's key, as that producer would."""
    value = AvroCodec(PRODUCERS).encode(record)
    out = OutRecord(topic=PRODUCERS.of(run.name), key=record.producer.encode(), value=value)
    run.publisher.publish_soon(out).result(20)


GHOSTS = tuple(group_id("demo", f"ghost/{number}", 0) for number in range(1000))
FORGED: dict[str, dict[str, Any]] = {
    "1,000 ghost groups": {"open_groups": GHOSTS},
    "1,000 ghosts that closed lately": {"recently_closed": GHOSTS},
    "offset of the ledger": {"ledger_offset": 2**53},
    "offsets of prompts": {"prompts_offsets": {"0": 2**53, "1": 2**53}},
    "sequence": {"next_sequence": 2**53},
    "sequence and mark": {"next_sequence": 2**53, "mark": f"{2**53}/0"},
    "mark": {"mark": f"{2**53}/0"},
    "pass of a curriculum": {"mark": "3/0/5000/3"},
    "pass that begins beyond its place": {"mark": "3/0/1/4"},
    "claim since 1970": {"producer": "ghost", "claimed_at": datetime(1970, 1, 1, tzinfo=UTC)},
    "own claim since 1970": {"claimed_at": datetime(1970, 1, 1, tzinfo=UTC)},
    "an hour ahead": {"incarnation": 3_600_000_000},
}
# While one runs these can be true: another process of its name may have taken over.
FORGED_WHILE_STOPPED: dict[str, dict[str, Any]] = {
    "another seed": {"mark": "3/7777"},
    "the first row again": {"mark": "0/0"},
    "no mark": {"mark": "x"},
    "another source": {"source": "stranger.jsonl@5891b5b522d5", "mark": "0/0"},
    **FORGED,
}


def test_a_forged_record_while_it_is_stopped_costs_neither_credit_nor_place(run: Run) -> None:
    settings = run.settings(share=3)
    with producing(settings):
        run.wait_for(3)
    for number, (what, change) in enumerate(FORGED_WHILE_STOPPED.items()):
        true = newest(run)
        incarnation = true.incarnation + change.get("incarnation", 0)
        open_groups = (*true.open_groups, *change.get("open_groups", ()))
        forge(run, true.model_copy(update={**change, "incarnation": incarnation, "open_groups": open_groups}))
        with producing(settings):
            run.step(*run.groups()[2 * number : 2 * number + 2])
            count = 3 + 2 * (number + 1)
            run.wait_for(count)
        assert sorted(prompt.sequence for prompt in run.prompts) == list(range(count)), what
        assert len(set(run.groups())) == count, what
        # What it writes then holds nothing of the forged one.
        assert not {*GHOSTS} & {*newest(run).open_groups, *newest(run).recently_closed}, what


def test_a_forged_record_ends_no_producer_that_runs(run: Run) -> None:
    with producing(run.settings(share=3)):
        run.wait_for(3)
        true = newest(run)
        for number, (what, change) in enumerate((name, one) for name, one in FORGED.items() if "ghost" not in name):
            refused = num_refused()
            incarnation = true.incarnation + change.get("incarnation", 1_000_000)
            forge(run, true.model_copy(update={**change, "incarnation": incarnation}))
            wait_until(lambda: num_refused() == refused + 1, f"the record to be passed over: {what}")  # noqa: B023
            run.step(*run.groups()[2 * number : 2 * number + 2])
            run.wait_for(5 + 2 * number)
            true = wait_until(lambda: written_after(run, true), "its own next record")  # noqa: B023


def num_refused() -> float:
    return REGISTRY.get_sample_value("rollstream_producer_refused_progress_total") or 0.0


def written_after(run: Run, before: ProducerProgress) -> ProducerProgress | None:
    """What the same process wrote of the prompts since."""
    now = newest(run)
    is_later = now.incarnation == before.incarnation and now.next_sequence == before.next_sequence + 2
    return now if is_later else None


def test_ghost_groups_are_told_from_groups_whose_prompts_have_expired(run: Run) -> None:
    settings = run.settings(share=4)
    with producing(settings):
        run.wait_for(4)
    true = newest(run)
    forge(run, true.model_copy(update={"open_groups": (*true.open_groups, *GHOSTS)}))
    run.let_prompts_expire()
    with producing(settings):
        run.wait_for(4)
        run.step(run.groups()[0])
        run.wait_for(5)
    assert len(set(run.groups())) == 5
