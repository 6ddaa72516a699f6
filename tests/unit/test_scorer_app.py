"""How the scorer's Faust application is set up, as far as a wrong setting would show only when a broker is lost."""

import asyncio
from collections.abc import Sequence

from rollstream.bus.message import Message
from rollstream.process.settings import KafkaSettings
from rollstream.scorer.app import StreamSettings, build_app
from rollstream.scorer.buffer import BoundedBuffer


async def handle(messages: Sequence[Message]) -> None:
    raise AssertionError(f"nothing is read here, got {messages}")


def test_a_new_leader_is_known_within_seconds_and_the_buffer_is_bounded_by_bytes() -> None:
    async def build() -> None:
        stream = StreamSettings(
            group="demo.scorers",
            topics=["demo.rollouts"],
            watch=asyncio.get_running_loop().create_future(),
            batch_size=128,
            session_timeout_seconds=20.0,
        )
        app = build_app(KafkaSettings(), stream, handle, lambda count: None)
        assert app.conf.consumer_metadata_max_age_ms == 5000
        assert isinstance(app.FlowControlQueue(maxsize=10), BoundedBuffer)

    asyncio.run(build())
