"""Submits one prompt from outside, and reads its scored answers. Such a prompt is never trained on."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollstream.bus.message import Partition
from rollstream.bus.run import Run
from rollstream.process.tracing.context import headers_of_environment
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.prompt import PromptSubmitted, refuse_out_of_bounds
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import SERVE_PROMPTS, SERVE_SCORED


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits, from its beginning to the last answer."""

    seconds: float
    since: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that are left, 0 after the end."""
        return max(0.0, self.since + self.seconds - time.monotonic())


def submit(run: Run, prompt: PromptSubmitted, patience: Patience) -> None:
    """Publish the prompt on `serve-prompts`; returns when the broker has confirmed it, or raises `BrokerError`.

    Its trace goes on from the variables TRACEPARENT and TRACESTATE, if they are set. Raises `ConfigurationError` for a
    prompt whose samples would all fail.
    """
    refuse_out_of_bounds(prompt)
    with run.publisher(f"prompt-{os.getpid()}") as publisher:
        delivery = publisher.publish_soon(run.out_record(SERVE_PROMPTS, prompt, headers_of_environment()))
        try:
            delivery.result(patience.left)
        except TimeoutError as error:
            raise BrokerError(
                f"the broker did not confirm the prompt within {patience.seconds:g} s, it may arrive later: "
                "--timeout waits longer"
            ) from error


def answers(
    run: Run, prompt: PromptSubmitted, start: dict[Partition, int], patience: Patience
) -> Iterator[RolloutScored]:
    """Give out each sample once, when it is on `serve-scored`. `start` are the offsets to read from.

    Raises `BrokerError` if samples are missing when the patience is over.
    """
    missing = set(range(prompt.group_size))
    key = prompt.group_id.encode()
    with run.reader(SERVE_SCORED, start=start) as reader:
        while missing:
            if not patience.left:
                raise BrokerError(
                    f"{len(missing)} of {prompt.group_size} answers did not come within {patience.seconds:g} s: "
                    "`rollstream status` shows whether generators and scorers run; --timeout waits longer"
                )
            for message in reader.poll(timeout_seconds=0.2):
                scored = run.decoded(SERVE_SCORED, message) if message.key == key else None
                if scored is not None and scored.rollout.sample_index in missing:
                    missing.discard(scored.rollout.sample_index)
                    yield scored
