"""Recorders over a spool in a directory, what lies in a spool, and hooks that tests name by their paths."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from rollstream.generator.serve.hook import Verdict
from rollstream.generator.serve.recorder import SpoolRecorder
from rollstream.generator.serve.settings import ServeSettings
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import SERVE_ROLLOUTS
from tests.harness.builders import RUN, a_generated
from tests.harness.running import run_on

NO_BROKER = KafkaSettings(bootstrap_servers="127.0.0.1:1")
"""Recording asks none."""


@asynccontextmanager
async def a_recorder(directory: Path, *, run: str = RUN, **settings: object) -> AsyncGenerator[SpoolRecorder, None]:
    """A recorder whose spool is in `directory`, closed at the end; nothing publishes what it records."""
    serve = ServeSettings.model_validate({"enabled": True, "spool": directory, **settings})
    recorder = await SpoolRecorder.opened(serve, run_on(NO_BROKER, run), a_generated().generator)
    try:
        yield recorder
    finally:
        await recorder.close()


async def spooled(recorder: SpoolRecorder) -> list[RolloutGenerated]:
    """The oldest answers of a spool that has some."""
    codec = AvroCodec(SERVE_ROLLOUTS)
    return [codec.decode(one.value) for one in await recorder.oldest()]


def by_its_id(rollout: RolloutGenerated) -> Verdict:
    """A hook that does what the response's id says; it raises for an id that says nothing."""
    assert rollout.served is not None
    verdicts: dict[str, Verdict] = {"keep": "keep", "text": "text", "drop": "drop"}
    return verdicts[rollout.served.response_id]


def leaves(_: RolloutGenerated) -> Verdict:
    """A hook that ends its process."""
    raise SystemExit(3)
