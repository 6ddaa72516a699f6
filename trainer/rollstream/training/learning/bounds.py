"""Bounds of the numbers in a record that a step computes with. Pure.

A record with a number beyond them would end the step, or the process, and would come again after every restart. So it
must not reach a step.
"""

from dataclasses import dataclass
from typing import Final

from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS, MAX_TEMPERATURE, MIN_TEMPERATURE
from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.training.learning.turns import num_seen


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBounds:
    """What the policy takes; by default any token id and any length."""

    vocab_size: int = 2**31
    max_tokens: int = 2**31
    """Of one sample, prompt included."""
    max_rollout_tokens: int = MAX_SAMPLE_TOKENS
    """Of all samples of a rollout, prompts included: branches repeat what they extend."""


ANY_MODEL: Final = ModelBounds()


def refuse_out_of_bounds(scored: RolloutScored, bounds: ModelBounds) -> None:
    """Raise `BadMessageError` for token ids, a length or a temperature that a step can't compute with."""
    _refuse_tokens(scored.rollout, bounds)
    own = [turn.temperature for turn in scored.rollout.turns if turn.may_train and turn.temperature is not None]
    for temperature in (scored.rollout.prompt.sampling.temperature, *own):
        if MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
            continue
        raise BadMessageError(
            f"rollout {scored.rollout.rollout_id} was sampled at temperature {temperature}, it must be "
            f"{MIN_TEMPERATURE} to {MAX_TEMPERATURE}: submit training prompts with such a temperature"
        )


def _refuse_tokens(rollout: RolloutGenerated, bounds: ModelBounds) -> None:
    tokens = [ids for turn in rollout.turns for ids in (turn.prompt_token_ids, turn.token_ids)]
    largest = max((int(ids.max()) for ids in tokens if len(ids)), default=0)
    if largest >= bounds.vocab_size:
        raise BadMessageError(
            f"rollout {rollout.rollout_id} has token id {largest}, it must be below the model's {bounds.vocab_size}: "
            "generate with the model that is trained"
        )
    num_tokens = max((num_seen(turn) for turn in rollout.turns), default=0)
    if num_tokens > bounds.max_tokens:
        raise BadMessageError(
            f"rollout {rollout.rollout_id} has a turn of {num_tokens} tokens, prefix included, it must have at most "
            f"{bounds.max_tokens}: lower the prompts' max_tokens, or raise learning.max_sample_tokens"
        )
