"""Which turns of a rollout make one sample: those of which each extends all tokens of the one before. Pure.

What a turn extends is a stranger's word (`prefix_turn`, `prefix_tokens`), so it is checked here. The tokens of a turn
are all that the model saw when it ended: its prefix, its own prompt tokens and what it sampled.
"""

from collections.abc import Sequence

from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.rollout import RolloutGenerated, Turn


def num_seen(turn: Turn) -> int:
    """Tokens of the turn, as it says."""
    return turn.prefix_tokens + len(turn.prompt_token_ids) + len(turn.token_ids)


def chains(rollout: RolloutGenerated, max_tokens: int = MAX_SAMPLE_TOKENS) -> list[list[int]]:
    """The numbers of the turns of each sample, in order of their first ones.

    A turn that extends all tokens of the last turn of a sample goes on with that sample. Any other is a branch and
    begins a sample: it extends a part of a turn, or a turn that another one has extended, or nothing. So does one that
    trains at another temperature than the sample. Turns of another model have no tokens, and are in no sample.
    Raises `BadMessageError` for a prefix that does not exist, and for samples of more than `max_tokens` together.
    """
    found: list[list[int]] = []
    by_last_turn: dict[int, list[int]] = {}
    for number, turn in enumerate(rollout.turns):
        _refuse_unknown_prefix(rollout, number)
        if turn.model:
            continue
        before = turn.prefix_turn
        extends_all = before is not None and turn.prefix_tokens == num_seen(rollout.turns[before])
        chain = by_last_turn.pop(before, None) if before is not None and extends_all else None
        if chain is not None and turn.may_train:
            trained = _trained_temperature(rollout, chain)
            chain = chain if trained in (None, _temperature(rollout, turn)) else None
        if chain is None:
            chain = []
            found.append(chain)
        chain.append(number)
        by_last_turn[number] = chain
    # A small record can name a long prefix thousands of times.
    num_tokens = sum(num_seen(rollout.turns[chain[-1]]) for chain in found)
    if num_tokens > max_tokens:
        raise BadMessageError(
            f"rollout {rollout.rollout_id} has {num_tokens} tokens in {len(found)} samples, it must have at most "
            f"{max_tokens}: let its turns branch less, or raise learning.max_rollout_tokens"
        )
    return found


def temperature_of(rollout: RolloutGenerated, chain: Sequence[int]) -> float:
    """At which temperature the tokens of a sample that train were sampled; the prompt's if none trains."""
    trained = _trained_temperature(rollout, chain)
    return rollout.prompt.sampling.temperature if trained is None else trained


def _trained_temperature(rollout: RolloutGenerated, chain: Sequence[int]) -> float | None:
    """That of the first turn that may train; None: none may."""
    trained = (turn for turn in (rollout.turns[number] for number in chain) if turn.may_train)
    return next((_temperature(rollout, turn) for turn in trained), None)


def _temperature(rollout: RolloutGenerated, turn: Turn) -> float:
    return rollout.prompt.sampling.temperature if turn.temperature is None else turn.temperature


def _refuse_unknown_prefix(rollout: RolloutGenerated, number: int) -> None:
    turn = rollout.turns[number]
    before = turn.prefix_turn
    known = 0 if before is None or before >= number else num_seen(rollout.turns[before])
    if (before is not None and before >= number) or turn.prefix_tokens > known:
        raise BadMessageError(
            f"rollout {rollout.rollout_id}: turn {number} extends {turn.prefix_tokens} tokens of turn {before}, it can "
            f"extend an earlier turn's tokens alone, there are {known}"
        )
