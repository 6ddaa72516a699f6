"""A served answer: whether it may train at all, and the group of one that it becomes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from rollstream.producers.feedback.settings import FeedbackSettings
from rollstream.producers.feedback.settling import LeftOut
from rollstream.schemas.ids import group_id, rollout_id
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.rollout import RolloutGenerated, Served, Status
from rollstream.schemas.scored import RolloutScored

COMPONENT_PREFIX: Final = "feedback/"
"""Before the name of a metric among the components of the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedReward:
    """What an answer's feedback came to, and when it settled."""

    reward: float
    values: Mapping[str, float]
    settled_ms: int


def why_left_out(rollout: RolloutGenerated, served: Served, settings: FeedbackSettings) -> LeftOut | None:
    """Why the answer never trains, whatever is said of it; None if it may."""
    if not served.may_train:
        return LeftOut.NO_CONSENT
    if rollout.status is not Status.COMPLETED or not rollout.turns:
        return LeftOut.NOT_COMPLETED
    if any(not len(turn.token_ids) for turn in rollout.turns):
        return LeftOut.NO_TOKENS
    if not all(turn.is_plain for turn in rollout.turns):
        return LeftOut.NOT_PLAIN
    if settings.tokenizer_sha256 not in ("", rollout.generator.tokenizer_sha256):
        return LeftOut.OTHER_TOKENIZER
    return None


def own_group(rollout: RolloutGenerated, run: str) -> str:
    """The group that the answer becomes: of a call's first choice it is the call's own, each other has one of its own.

    It is computed, not taken from the record: so no record can name the group of another prompt.
    """
    return group_id(run, rollout.prompt.prompt_id, rollout.sample_index)


def group_of_one(scored: RolloutScored, joined: JoinedReward, *, run: str, producer: str) -> RolloutScored:
    """The answer as the only sample of a training group, with the reward that feedback gave it.

    The same answer and feedback give the same record, so that one that is published twice is a duplicate.
    """
    settled_at = datetime.fromtimestamp(joined.settled_ms / 1000, UTC)
    rollout = scored.rollout
    group = own_group(rollout, run)
    prompt = rollout.prompt.model_copy(
        update={
            "purpose": Purpose.TRAIN,
            "group_id": group,
            "group_size": 1,
            "weight_version": None,
            "producer": producer,
            # Not when the client asked: the memory of closed groups would take it for one that it has forgotten.
            "submitted_at": settled_at,
        }
    )
    sample = rollout.model_copy(
        update={
            "rollout_id": rollout_id(group, 0),
            "group_id": group,
            "group_size": 1,
            "sample_index": 0,
            "prompt": prompt,
        }
    )
    given = {f"{COMPONENT_PREFIX}{metric}": value for metric, value in joined.values.items()}
    scoring = scored.scoring.model_copy(
        update={
            "scorer": producer,
            "scorer_version": version("rollstream"),
            "reward": joined.reward,
            "components": {**scored.scoring.components, **given},
            "status": Status.COMPLETED,
            "failure": None,
            "scored_at": settled_at,
        }
    )
    return RolloutScored(rollout=sample, scoring=scoring)
