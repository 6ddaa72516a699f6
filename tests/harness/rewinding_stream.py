"""The scorer's real stream in the moment after a rebalance: what was polled is dropped, nothing is committed yet."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import KafkaMessage
from rollstream.bus.topic_watch import TopicWatch
from rollstream.process.entry import run_process
from rollstream.process.stop import Stop
from rollstream.schemas.topics import ROLLOUTS
from rollstream.scorer.app import StreamSettings, build_app
from rollstream.scorer.settings import ScorerSettings

REWOUND: Final = "rewound"
"""The line of `seen` between what was dropped and what came after it."""


def main(config: Path, seen: Path, num_records: int) -> None:
    """The process. It writes partition and offset of each record that it is given as a line of `seen`.

    `num_records`: on the topic.
    """
    settings = ScorerSettings.load(config)
    topics = [ROLLOUTS.of(settings.run)]

    async def read(stop: Stop) -> None:
        stream = StreamSettings(
            group=f"{settings.run}.scorers",
            topics=topics,
            watch=asyncio.create_task(asyncio.to_thread(lambda: TopicWatch(KafkaAdmin(settings.kafka), topics))),
            batch_size=100,
            session_timeout_seconds=10.0,
        )

        async def note(messages: Sequence[KafkaMessage], _must_end: Callable[[], bool]) -> None:
            is_first = not seen.exists()
            with seen.open("a") as file:
                file.writelines(f"{message.partition}/{message.offset}\n" for message in messages)
                if is_first:
                    file.write(f"{REWOUND}\n")
            if is_first:
                # Faust marks a record as read after handing it over. If it still did, it would undo the next line.
                while (
                    sum(offset + 1 for offset in app.consumer._read_offset.values() if offset is not None) < num_records
                ):
                    await asyncio.sleep(0.02)
                # As Faust does once partitions are handed out. The batch is not acknowledged before this ends.
                await app.consumer.perform_seek()

        app = build_app(settings.kafka, stream, note, lambda count: None)
        await app.start()
        await stop.asked()
        await app.stop()

    run_process("scorer", read)
