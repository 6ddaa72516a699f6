"""`ProducerProgress`: how far a producer is. A producer that starts again goes on from its newest record."""

from typing import Annotated

from pydantic import Field

from rollstream.schemas.bounds import MAX_CURRICULUM_BYTES
from rollstream.schemas.record import Count, Id, Map, Name, Record, Sequence, Timestamp


class ProducerProgress(Record):
    """A producer's claim on its source, and all that it needs to go on after a restart.

    It is written when the broker has confirmed a batch of prompts. Prompts that were submitted after it lie on
    `prompts` from `prompts_offsets` on. Which of its groups are closed follows from the two lists of groups and from
    the ledger's entries from `ledger_offset` on.

    Example:
        ProducerProgress(
            producer="producer-0",
            incarnation=1_772_366_400_250_000,
            source="train.jsonl@5891b5b522d5",
            claimed_at=utc_now(),
            mark="18/0",
            next_sequence=18,
            open_groups=(group_id("demo", "sort_digits/17", 0),),
            ledger_offset=40,
            prompts_offsets={"0": 11, "1": 9},
            written_at=utc_now(),
        )
    """

    producer: Name = Field(min_length=1, description="Name of the producer, the record's key")
    incarnation: Count = Field(description="Number of the process; a later process of the same name has a larger")
    source: Name = Field(description="What it reads; no two producers of a run may read the same")
    claimed_at: Timestamp = Field(description="Since when this producer has this source, UTC; the first one keeps it")
    mark: Name = Field(description="Where to go on in the source, in the source's own form")
    next_sequence: Count = Field(description="Number of its next prompt")
    open_groups: Sequence[Id] = Field(default=(), description="Ids of its training groups that are open")
    recently_closed: Sequence[Id] = Field(
        default=(), description="Ids of its groups that the ledger's entries from ledger_offset on close"
    )
    ledger_offset: Count = Field(default=0, description="Offset in ledger to read on from")
    prompts_offsets: Map[Count] = Field(
        default_factory=dict, description="Partition of prompts to the offset to read on from; absent: from the start"
    )
    curriculum: Annotated[bytes, Field(max_length=MAX_CURRICULUM_BYTES)] | None = Field(
        default=None, description="How hard its tasks were, in the form of producers/curriculum.py; null without one"
    )
    written_at: Timestamp = Field(description="UTC")
