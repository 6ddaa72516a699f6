"""Submits one prompt from outside, and reads its scored answers. Such a prompt is never trained on."""

import os
import time
from collections.abc import Iterator

from rollstream.bus.message import Partition
from rollstream.bus.run import Run
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import PROMPTS, SCORED


def submit(run: Run, prompt: PromptSubmitted) -> None:
    """Publish the prompt on `prompts`; returns when the broker has confirmed it."""
    with run.publisher(f"prompt-{os.getpid()}") as publisher:
        publisher.publish_soon(run.out_record(PROMPTS, prompt)).result()


def answers(
    run: Run, prompt: PromptSubmitted, start: dict[Partition, int], timeout_seconds: float
) -> Iterator[RolloutScored]:
    """Give out each sample once, when it is on `scored`. `start` are the offsets to read from.

    Raises `BrokerError` if samples are missing after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    missing = set(range(prompt.group_size))
    key = prompt.group_id.encode()
    with run.reader(SCORED, start=start) as reader:
        while missing:
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"{len(missing)} of {prompt.group_size} answers did not come within {timeout_seconds:g} s: "
                    "`rollstream status` shows whether generators and scorers run; --timeout waits longer"
                )
            for message in reader.poll(timeout_seconds=0.2):
                scored = run.decoded(SCORED, message) if message.key == key else None
                if scored is not None and scored.rollout.sample_index in missing:
                    missing.discard(scored.rollout.sample_index)
                    yield scored
