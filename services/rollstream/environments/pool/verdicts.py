"""The messages between the scorer and its scoring processes: chunks of samples there, verdicts back.

Whatever a reward function wants can come back, since it runs in the process that writes. So answers are JSON of bounded
length, and are checked like records. Chunks are pickled: nobody but the scorer can write to a scoring process.
"""

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field, ValidationError, model_validator

from rollstream.environments.rubric import RewardInput, RewardTurn
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.record import Count, Map, Record, Reward, ShortSequence, Symbol
from rollstream.schemas.rollout import RolloutGenerated, Status, answering, check_failure
from rollstream.schemas.scored import TurnScore

LENGTH: Final = struct.Struct(">I")
"""A frame is the length of a message, and the message."""
MAX_ANSWER_BYTES: Final = 2**20
"""Of one answer: thousands of components, or the longest text of a failure many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringSample:
    """What is scored. It holds only what a rubric needs, without the token arrays, which are large."""

    environment: str
    answer: RewardInput

    @classmethod
    def of(cls, rollout: RolloutGenerated) -> Self:
        prompt, texts = rollout.prompt, tuple(turn.text for turn in answering(rollout.turns))
        answer = RewardInput(
            completion=texts[-1] if texts else "",
            assistant_messages=texts,
            messages=prompt.messages,
            reference_answer=prompt.reference_answer,
            metadata=prompt.metadata,
            turns=tuple(RewardTurn.of(turn, prompt.sampling.max_tokens) for turn in rollout.turns),
            observations=rollout.observations,
        )
        return cls(environment=prompt.environment, answer=answer)


class Verdict(Record):
    """How scoring a sample ended: with a reward if it completed, else with a failure.

    Example:
        Verdict(status=Status.COMPLETED, reward=1.0, components={"exact_match": 1.0})
    """

    status: Symbol[Status]
    reward: Reward | None = None
    components: Map[Reward] = Field(default_factory=dict)
    failure: Failure | None = None
    turn_scores: ShortSequence[TurnScore] = ()

    @model_validator(mode="after")
    def _reward_or_failure(self) -> Self:
        if (self.reward is not None) != (self.status is Status.COMPLETED):
            raise ValueError(f"reward {self.reward!r} does not fit status {self.status.value!r}")
        check_failure(self.status, self.failure)
        return self


def unresolved(code: FailureCode, message: str) -> Verdict:
    """The verdict on a sample that could not be scored, by no fault of its own."""
    return Verdict(status=Status.UNRESOLVED, failure=Failure(code=code, message=message))


REWARD_AT_TIMEOUT: Final = "reward_at_timeout"
"""The one component of a sample whose reward was not computed: its scoring took too long."""


def rewarded_at_timeout(reward: float) -> Verdict:
    """The verdict on a sample whose scoring took too long, where the settings give such samples a reward."""
    return Verdict(status=Status.COMPLETED, reward=reward, components={REWARD_AT_TIMEOUT: 1.0})


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
        return range(self.number + 1, self.number + 1 + len(self.answers))


STARTED: Final = 0
"""The id in the first frame of a process. Chunks have higher ones."""


class ScoringAnswer(Record):
    """One frame of a scoring process, with the id of what it answers.

    After its start, and when it has loaded an environment, there is no verdict. A verdict on loading one counts for all
    samples of the chunk.

    Example:
        ScoringAnswer(answered_id=STARTED)
    """

    answered_id: Count
    verdict: Verdict | None = None


def framed_request(request: Setup | Chunk) -> bytes:
    return _framed(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))


def framed_answer(answered: ScoringAnswer) -> bytes:
    """One frame of a scoring process. A verdict that is too long for one is replaced by one that says so."""
    body = answered.model_dump_json().encode()
    if len(body) > MAX_ANSWER_BYTES:
        long = f"the rubric's components take {len(body)} bytes as JSON, the bound is {MAX_ANSWER_BYTES}: give fewer"
        shorter = unresolved(FailureCode.BAD_REWARD, long)
        body = ScoringAnswer(answered_id=answered.answered_id, verdict=shorter).model_dump_json().encode()
    return _framed(body)


def read_answer(body: bytes) -> ScoringAnswer | None:
    """What a scoring process wrote; None if it is no answer."""
    try:
        answered = ScoringAnswer.model_validate_json(body)
    except ValidationError:
        return None
    # This program knows the statuses of all its own verdicts.
    is_known = answered.verdict is None or answered.verdict.status is not Status.UNKNOWN
    return answered if is_known else None


def _framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body
