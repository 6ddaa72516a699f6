"""How the scorer's Faust application is set up, as far as a wrong setting would show only when a broker is lost."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rollstream.bus.message import KafkaMessage
from rollstream.process.settings.base import KafkaSettings
from rollstream.scorer.app import BoundedBuffer, StreamSettings, build_app
from tests.harness.waits import in_a_loop


async def handle(messages: Sequence[KafkaMessage]) -> None:
    raise AssertionError(f"nothing is read here, got {messages}")


def an_app() -> Any:
    """Within an event loop."""
    stream = StreamSettings(
        group="demo.scorers",
        topics=["demo.rollouts"],
        watch=asyncio.get_running_loop().create_future(),
        batch_size=128,
        session_timeout_seconds=20.0,
    )
    return build_app(KafkaSettings(), stream, handle, lambda count: None)


def test_the_last_commit_is_made_also_when_one_is_under_way_that_began_before() -> None:
    """Faust only waits for that one: what was scored meanwhile would be scored again."""

    async def end() -> list[set[str]]:
        app = an_app()
        consumer = app._new_consumer()
        consumer._thread.thread_loop.close()  # of a thread that is never started
        done, began, go_on, committed = {"the first batch"}, asyncio.Event(), asyncio.Event(), []

        async def commit_what_is_done(*args: object, **options: object) -> bool:
            found = set(done)
            began.set()
            await go_on.wait()
            committed.append(found)
            return True

        consumer.force_commit = commit_what_is_done
        under_way = asyncio.create_task(consumer.commit())
        await began.wait()
        done.add("the last batch")
        last = asyncio.create_task(consumer.commit_and_end_transactions())
        go_on.set()
        await asyncio.gather(under_way, last)
        return committed

    assert asyncio.run(end()) == [{"the first batch"}, {"the first batch", "the last batch"}]


@in_a_loop
async def test_a_new_leader_is_known_within_seconds_and_the_buffer_is_bounded_by_bytes() -> None:
    app = an_app()
    assert app.conf.consumer_metadata_max_age_ms == 5000
    assert isinstance(app.FlowControlQueue(maxsize=10), BoundedBuffer)
