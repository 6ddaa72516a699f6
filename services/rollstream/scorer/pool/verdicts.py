"""What goes to a scoring process and what comes back, and how both are framed on the socket between."""

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollstream.environments.rubric import RewardInput
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.rollout import Status

LENGTH: Final = struct.Struct(">I")
"""Each frame is its length and a pickle; both ends are this program, so unpickling trusts nobody new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is scored: only what a rubric needs, never the token arrays."""

    environment: str
    answer: RewardInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How scoring a sample ended; a reward only if it completed, else a failure."""

    status: Status
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None


def unresolved(code: FailureCode, message: str) -> Verdict:
    """No fault of the sample: scoring it did not work."""
    return Verdict(status=Status.UNRESOLVED, failure=Failure(code=code, message=message))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Samples of one environment, sent at once; the verdicts come back one by one, in order."""

    environment: str
    options: Mapping[str, str]
    answers: tuple[RewardInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """First answer to a chunk: its environment is there, or `refusal` is the verdict on every sample of the chunk."""

    refusal: Verdict | None = None


def framed(value: Any) -> bytes:
    """`value` as one frame."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body
