"""From a rollout to what the rubric scores, and from the verdict to the scored rollout. Pure.

completed   the rubric gave a number, whether the answer was right or wrong.
failed      no rubric can be applied: the rollout failed, or its prompt names no environment or an unknown one.
unresolved  the rollout was unresolved, or a reward function raised, hung or died. This is never a reward of 0.
"""

from dataclasses import dataclass
from datetime import datetime

from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.schemas.errors import RecordTooLargeError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.scored import RolloutScored, Scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerIdentity:
    """Which scorer process scores, and the version of its program."""

    scorer_id: str
    version: str


def sample_of(rollout: RolloutGenerated) -> ScoringSample | Verdict:
    """What the rubric scores; or, if there is nothing to score, already the verdict."""
    if rollout.status is not Status.COMPLETED:
        return Verdict(status=rollout.status, failure=rollout.failure)
    if not rollout.prompt.environment:
        why = Failure(code=FailureCode.NO_ENVIRONMENT, message="the prompt names none, so no rubric scores it")
        return Verdict(status=Status.FAILED, failure=why)
    return ScoringSample.of(rollout)


def annotated(
    rollout: RolloutGenerated, verdict: Verdict, scorer: ScorerIdentity, scored_at: datetime
) -> RolloutScored:
    """The unchanged rollout together with its scoring."""
    scoring = Scoring(
        scorer=scorer.scorer_id,
        scorer_version=scorer.version,
        reward=verdict.reward,
        components=verdict.components,
        status=verdict.status,
        failure=verdict.failure,
        turn_scores=verdict.turn_scores,
        scored_at=scored_at,
    )
    return RolloutScored(rollout=rollout, scoring=scoring)


def without_tokens(scored: RolloutScored, error: RecordTooLargeError) -> RolloutScored:
    """The result as failed and without its turns, because its record is larger than a message may be."""
    why = Failure(code=FailureCode.TOO_LARGE, message=str(error))
    rollout = scored.rollout.model_copy(update={"turns": (), "status": Status.FAILED, "failure": why})
    scoring = scored.scoring.model_copy(
        update={"reward": None, "components": {}, "turn_scores": (), "status": Status.FAILED, "failure": why}
    )
    return RolloutScored(rollout=rollout, scoring=scoring)
