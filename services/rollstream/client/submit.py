"""One prompt from outside: put on `prompts`, its scored answers read from `scored`. It is never trained on."""

import os
import time
from collections.abc import Iterator

from rollstream.bus.message import OutRecord, Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.reader import TopicReader
from rollstream.bus.records import readable
from rollstream.process.settings import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import PROMPTS, SCORED


def submit(settings: StageSettings, prompt: PromptSubmitted) -> None:
    """Put the prompt on its topic; returns once the broker has confirmed it."""
    value = AvroCodec(PROMPTS, settings.registry()).encode(prompt)
    publisher = Publisher(settings.kafka, client_id=f"prompt-{os.getpid()}")
    try:
        record = OutRecord(topic=PROMPTS.of(settings.run), key=prompt.group_id.encode(), value=value)
        publisher.publish_soon(record).result()
    finally:
        publisher.close()


def answers(
    settings: StageSettings, prompt: PromptSubmitted, start: dict[Partition, int], timeout_seconds: float
) -> Iterator[RolloutScored]:
    """Each sample once, as it comes; raises `BrokerError` when some are missing at the deadline."""
    deadline = time.monotonic() + timeout_seconds
    codec = AvroCodec(SCORED, settings.registry())
    missing = set(range(prompt.group_size))
    key = prompt.group_id.encode()
    with TopicReader(settings.kafka, [SCORED.of(settings.run)], start=start) as reader:
        while missing:
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"{len(missing)} of {prompt.group_size} answers did not come within {timeout_seconds:g} s: "
                    "`rollstream status` shows whether generators and scorers run; --timeout waits longer"
                )
            own = [message for message in reader.poll(timeout_seconds=0.2) if message.key == key]
            for scored in readable(codec, own):
                if scored.rollout.sample_index in missing:
                    missing.discard(scored.rollout.sample_index)
                    yield scored
