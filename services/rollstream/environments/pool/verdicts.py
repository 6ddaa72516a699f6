"""The messages between the scorer and its scoring processes: chunks of samples there, verdicts back."""

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rollstream.environments.rubric import RewardInput
from rollstream.process.declared import Declaration
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.rollout import RolloutGenerated, Status

LENGTH: Final = struct.Struct(">I")
"""A frame is the length of a pickle and the pickle. Both ends are this program, so unpickling is safe here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is scored. It holds only what a rubric needs, without the token arrays, which are large."""

    environment: str
    answer: RewardInput

    @classmethod
    def of(cls, rollout: RolloutGenerated) -> Self:
        """Of a completed rollout."""
        prompt, texts = rollout.prompt, tuple(turn.text for turn in rollout.turns)
        answer = RewardInput(
            completion=texts[-1] if texts else "",
            assistant_messages=texts,
            messages=prompt.messages,
            reference_answer=prompt.reference_answer,
            metadata=prompt.metadata,
        )
        return cls(environment=prompt.environment, answer=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How scoring a sample ended: with a reward if it completed, else with a failure."""

    status: Status
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    failure: Failure | None = None


def unresolved(code: FailureCode, message: str) -> Verdict:
    """The verdict on a sample that could not be scored, by no fault of its own."""
    return Verdict(status=Status.UNRESOLVED, failure=Failure(code=code, message=message))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first message to a scoring process: where it finds modules, and which environments the settings declare."""

    module_path: list[str]
    environments: Mapping[str, Declaration]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Samples of one environment that are sent together. Their verdicts come back one by one, in their order.

    `number` is the id of loading the environment; the samples have the ids after it. No two chunks share an id.
    """

    number: int
    environment: str
    answers: tuple[RewardInput, ...]

    @property
    def sample_ids(self) -> range:
        """The id of each sample."""
        return range(self.number + 1, self.number + 1 + len(self.answers))


STARTED: Final = 0
"""The id in the first frame of a process. Chunks have higher ones."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One frame of a scoring process, with the id of what it answers.

    After its start, and when it has loaded an environment, there is no verdict. A verdict on loading one counts for all
    samples of the chunk.
    """

    answered_id: int
    verdict: Verdict | None = None


def framed(value: Any) -> bytes:
    """`value` as one frame."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body
