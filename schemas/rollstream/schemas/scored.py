"""`RolloutScored`: the rollout, annotated with its reward, on `scored`."""

from pydantic import Field, model_validator

from rollstream.schemas.failure import Failure
from rollstream.schemas.record import Count, Map, Name, Record, Reward, ShortSequence, Symbol, Timestamp
from rollstream.schemas.rollout import RolloutGenerated, Status, check_failure


class TurnScore(Record):
    """What the scorer found in one turn. A turn whose scoring failed has no reward; it never gets a reward of 0.

    Example:
        TurnScore(turn=2, reward=1.0, components={"exact_match": 1.0})
    """

    turn: Count = Field(description="Which turn of the rollout, from 0")
    reward: Reward | None = Field(default=None, description="Weighted sum of the components")
    components: Map[Reward] = Field(default_factory=dict, description="Unweighted value of each reward function")
    failure: Failure | None = Field(default=None, description="Why there is no reward; null if there is")

    @model_validator(mode="after")
    def _reward_or_failure(self) -> "TurnScore":
        if (self.reward is None) != (self.failure is not None):
            raise ValueError(f"turn {self.turn} has reward {self.reward!r} and failure {self.failure!s}: one of both")
        return self


class Scoring(Record):
    """What the scorer found. A failed or unresolved sample has no reward; it never gets a reward of 0.

    Example:
        scoring = Scoring(
            scorer="scorer-1",
            scorer_version="0.1.0",
            reward=1.0,
            components={"exact_match": 1.0},
            status=Status.COMPLETED,
            scored_at=utc_now(),
        )
        late = Failure(code=FailureCode.TIMEOUT, message="scoring this sample took longer than 5 s")
        Scoring(
            scorer="scorer-1", scorer_version="0.1.0", status=Status.UNRESOLVED, failure=late, scored_at=utc_now()
        )
    """

    scorer: Name = Field(description="Unique per process")
    scorer_version: Name = Field(description="Version of the scorer")
    reward: Reward | None = Field(default=None, description="Weighted sum of the components")
    components: dict[str, Reward] = Field(default_factory=dict, description="Unweighted value of each reward function")
    status: Symbol[Status] = Field(description="completed, failed or unresolved")
    failure: Failure | None = Field(default=None, description="Why there is no reward; null if there is")
    turn_scores: ShortSequence[TurnScore] = Field(
        default=(), description="Scores of single turns, of the types that the rubric scores"
    )
    scored_at: Timestamp = Field(description="UTC")

    @model_validator(mode="after")
    def _reward_or_failure(self) -> "Scoring":
        if (self.reward is not None) != (self.status is Status.COMPLETED):
            raise ValueError(
                f"reward {self.reward!r} does not fit status {self.status.value!r}: only completed has one"
            )
        check_failure(self.status, self.failure)
        return self


class RolloutScored(Record):
    """A rollout was scored.

    Example:
        RolloutScored(rollout=rollout, scoring=scoring)
    """

    rollout: RolloutGenerated = Field(
        description="As generated; failed and without its turns if the record would be too large"
    )
    scoring: Scoring = Field(description="What the scorer found")

    @model_validator(mode="after")
    def _only_completed_is_scored(self) -> "RolloutScored":
        statuses = {self.rollout.status, self.scoring.status}
        # A newer version may write a status that is UNKNOWN here, and decide what goes with it.
        is_open = Status.UNKNOWN in statuses and self.scoring.status is not Status.COMPLETED
        if self.rollout.status is not Status.COMPLETED and len(statuses) > 1 and not is_open:
            raise ValueError(
                f"scoring is {self.scoring.status.value!r} and the rollout {self.rollout.status.value!r}: one that is "
                "not completed keeps its status"
            )
        return self
