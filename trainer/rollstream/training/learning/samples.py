"""`TrainingSample`: what the trainer learns from a rollout, as token ids and masks, without text.

A rollout is one sample, or several if its turns branch (`turns.py`). Shapes: `P` prompt tokens of a sample's first
turn, `T` tokens after them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.rollout import RolloutGenerated, Turn
from rollstream.training.learning.bounds import ModelBounds
from rollstream.training.learning.turns import chains, temperature_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A rollout, or a branch of one, with its advantage.

    Example: `52910=` answered `01259` by a stop: prompt_token_ids [6], token_ids [6] (the stop token trains too),
    loss_mask all True, temperature 1.0, policy_lag 1.
    """

    rollout_id: str
    """The same for samples of one rollout, which counts once in a mean; empty: a rollout of its own."""
    group_id: str
    prompt_token_ids: npt.NDArray[np.int32]
    """[P] what the model was given before its first sampled token. A branch was given tokens of earlier turns too."""
    token_ids: npt.NDArray[np.int32]
    """[T] sampled tokens of all turns, with the prompt tokens of later turns between them."""
    behavior_logprobs: npt.NDArray[np.floating[Any]]
    """[T] logprob of each sampled token when it was sampled; 0 where it was not sampled."""
    loss_mask: npt.NDArray[np.bool_]
    """[T] True where the token trains."""
    reward: float
    advantage: float
    temperature: float
    """Divides the logits; see `bounds.py`."""
    max_tokens: int
    """The prompt's, lowered to what the model takes, however many turns there were; `dr_grpo` divides by it."""
    policy_lag: int
    """Largest lag of its rollout's spans: optimizer steps between a span's version and the trainer's."""
    compared_in: str | None = None
    """Of a group of one: its environment, among whose groups of one the step compares it. None: its group has more."""
    turn_weights: npt.NDArray[np.float64] | None = None
    """[T] factor of the advantage of each token; None: 1. Where turns have advantages of their own it holds those."""
    has_turn_advantages: bool = False
    """Whether they have. Then `advantage` is 1 and stays it: the rollout's reward is compared with nothing."""
    weight_versions: npt.NDArray[np.int64] | None = None
    """[T] which weights sampled each token, -1 where it was not sampled; None: not known."""
    proximal_logprobs: npt.NDArray[np.floating[Any]] | None = None
    """[T] logprob of each token that trains under the policy before the step; None: the learner computes them."""
    reference_logprobs: npt.NDArray[np.floating[Any]] | None = None
    """[T] logprob of each token that trains under the reference model, if there is one; 0 where it does not train."""

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that enter the loss."""
        return int(self.loss_mask.sum())

    @property
    def token_advantages(self) -> npt.NDArray[np.float64]:
        """[num_trained_tokens] the advantage of each token that trains: the sample's, times the weight of its turn."""
        weights = np.ones(self.num_trained_tokens) if self.turn_weights is None else self.turn_weights[self.loss_mask]
        return self.advantage * weights

    @property
    def has_gradient(self) -> bool:
        """Whether anything is learned from it: it has tokens that train, and an advantage that is not 0."""
        trained = self.loss_mask if self.turn_weights is None else self.turn_weights[self.loss_mask]
        return self.advantage != 0 and bool(trained.any())

    @property
    def num_tokens(self) -> int:
        """Length of the whole sequence, prompt included."""
        return len(self.prompt_token_ids) + len(self.token_ids)


def rollout_numbers(samples: Sequence[TrainingSample]) -> npt.NDArray[np.int64]:
    """[number of samples] which rollout each sample is of, numbered from 0."""
    numbers: dict[str | int, int] = {}
    ids = (sample.rollout_id or place for place, sample in enumerate(samples))
    return np.array([numbers.setdefault(one, len(numbers)) for one in ids], dtype=np.int64)


def imitated(prompt_token_ids: npt.ArrayLike, token_ids: npt.ArrayLike) -> TrainingSample:
    """A sample to imitate, for the loss `nll`: all of `token_ids` train, whatever they are worth.

    Without a prompt all but the first do: nothing predicts that one.
    """
    whole = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in (prompt_token_ids, token_ids)])
    prompt, answer = np.split(whole, [max(1, np.size(prompt_token_ids))])
    return TrainingSample(
        rollout_id="",
        group_id="",
        prompt_token_ids=prompt,
        token_ids=answer,
        behavior_logprobs=np.zeros(len(answer), dtype=np.float32),
        loss_mask=np.ones(len(answer), dtype=np.bool_),
        reward=0.0,
        advantage=0.0,
        temperature=1.0,
        max_tokens=max(1, len(answer)),
        policy_lag=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """Which sampled tokens train, and how much."""

    versions: frozenset[int] | None = None
    """Only those that these weights sampled; None: any."""
    truncated: bool = False
    """Also those of samples whose last turn was cut off."""
    turn_weights: Mapping[str, float] = field(default_factory=dict)
    """`TYPE/NUMBER` or `TYPE` of a turn → factor of the advantage of its tokens, 1 if neither is named. Tokens of
    weight 0 do not train, and no normalization counts them."""

    def weight(self, turn: Turn) -> float:
        """The factor of the turn's tokens."""
        by_type = self.turn_weights.get(turn.turn_type, 1.0)
        return self.turn_weights.get(f"{turn.turn_type}/{turn.turn_number}", by_type)


ALL_TOKENS: Final = TrainedTokens()


def training_samples(
    rollout: RolloutGenerated,
    reward: float | None,
    *,
    advantage: float,
    lag: int,
    bounds: ModelBounds,
    trained: TrainedTokens = ALL_TOKENS,
    of_turns: Mapping[int, float] | None = None,
) -> tuple[TrainingSample, ...]:
    """The training samples of a completed rollout with a reward, within `bounds`: one for each chain of turns.

    Turns of which each extends all tokens of the one before are one sample; their prompt tokens lie between them, with
    mask False. A branch begins another sample of the same rollout. What it extends is its prompt, so each sampled
    token trains once. The ids are the engine's.
    Whether a sample is truncated its last turn says. Of a truncated one no token trains, and its rollout's reward is in
    the baseline alone, unless `trained` says otherwise. An earlier turn of it that was cut off trains.
    `of_turns`: number of a turn → its own advantage (`turn_credit.py`), for `advantage`; the other turns do not train.
    Only turns that may train do (`Turn.may_train`): of others the logprobs are not the policy's.
    Raises `BadMessageError` if there is nothing to learn from: no reward, no turns, an empty prompt, a prefix that does
    not exist.
    """
    if reward is None or not rollout.turns:
        raise BadMessageError(f"rollout {rollout.rollout_id} has no reward or no turns: only completed rollouts train")
    common: dict[str, Any] = {
        "rollout_id": rollout.rollout_id,
        "group_id": rollout.group_id,
        "reward": reward,
        "advantage": advantage if of_turns is None else 1.0,
        "has_turn_advantages": of_turns is not None,
        "max_tokens": min(rollout.prompt.sampling.max_tokens, bounds.max_tokens),
        "policy_lag": lag,
        "compared_in": rollout.prompt.environment if rollout.group_size == 1 else None,
    }
    samples: list[TrainingSample] = []
    of_turn: dict[int | None, TrainingSample] = {}
    for chain in chains(rollout, bounds.max_rollout_tokens):
        # What it extends is an earlier turn, whose tokens are the first ones of a sample that is there by now.
        prompt = _prompt(rollout.turns[chain[0]], of_turn)
        samples.append(_sample(rollout, chain, prompt, trained, of_turns, common))
        of_turn.update(dict.fromkeys(chain, samples[-1]))
    return tuple(samples)


def _prompt(turn: Turn, of_turn: Mapping[int | None, TrainingSample]) -> npt.NDArray[np.int32]:
    """What the model was given before the turn's first sampled token."""
    count = turn.prefix_tokens
    if not count:
        return turn.prompt_token_ids
    extended = of_turn[turn.prefix_turn]
    sampled = extended.token_ids[: max(0, count - len(extended.prompt_token_ids))]
    return np.concatenate([extended.prompt_token_ids[:count], sampled, turn.prompt_token_ids])


def _sample(
    rollout: RolloutGenerated,
    chain: Sequence[int],
    prompt: npt.NDArray[np.int32],
    trained: TrainedTokens,
    of_turns: Mapping[int, float] | None,
    common: Mapping[str, Any],
) -> TrainingSample:
    turns = [rollout.turns[number] for number in chain]
    if not len(prompt):
        raise BadMessageError(f"rollout {rollout.rollout_id} has an empty prompt: nothing predicts its first token")
    versions = _laid_out(turns, list(map(_versions, turns)), -1)
    mask = versions >= 0 if trained.versions is None else np.isin(versions, list(trained.versions))
    trains = [
        turn.may_train and trained.weight(turn) > 0 and (of_turns is None or number in of_turns)
        for number, turn in zip(chain, turns, strict=True)
    ]
    if not all(trains):
        mask = mask & (_per_turn(turns, trains) > 0)
    weights = None
    if trained.turn_weights or of_turns is not None:
        own = [1.0 if of_turns is None else of_turns.get(number, 0.0) for number in chain]
        weights = _per_turn(turns, [trained.weight(turn) * one for turn, one in zip(turns, own, strict=True)])
    return TrainingSample(
        prompt_token_ids=prompt,
        token_ids=_laid_out(turns, [turn.token_ids for turn in turns]),
        behavior_logprobs=_laid_out(turns, [turn.behavior_logprobs for turn in turns], 0.0),
        loss_mask=mask & (trained.truncated or not turns[-1].is_truncated),
        turn_weights=weights,
        weight_versions=versions,
        temperature=temperature_of(rollout, chain),
        **common,
    )


def _laid_out(
    turns: Sequence[Turn], of_sampled: Sequence[npt.NDArray[Any]], of_given: float | None = None
) -> npt.NDArray[Any]:
    """[T] `of_sampled`, an array for each turn, with `of_given` between them; None: the ids that were given."""
    pieces = [of_sampled[0]]
    for turn, sampled in zip(turns[1:], of_sampled[1:], strict=True):
        given = turn.prompt_token_ids
        between = given if of_given is None else np.full(len(given), of_given, dtype=sampled.dtype)
        pieces += [between, sampled]
    # Without a copy where there is one turn: most rollouts are, and there are hundreds in a step.
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _per_turn(turns: Sequence[Turn], values: Sequence[float]) -> npt.NDArray[np.float64]:
    """[T] the value of its turn for each sampled token, 0 between them."""
    sampled = [np.full(len(turn.token_ids), value, np.float64) for turn, value in zip(turns, values, strict=True)]
    return _laid_out(turns, sampled, 0.0)


def _versions(turn: Turn) -> npt.NDArray[np.int64]:
    """[T] which weights sampled each of the turn's tokens."""
    versions = np.array([span.weight_version for span in turn.weight_spans], dtype=np.int64)
    return np.repeat(versions, [span.end - span.start for span in turn.weight_spans])
