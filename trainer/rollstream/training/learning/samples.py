"""`TrainingSample`: one rollout as the trainer learns from it, as token ids and masks, without text.

Shapes: `P` prompt tokens of the first turn, `T` tokens after them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Turn
from rollstream.schemas.scored import RolloutScored
from rollstream.training.learning.bounds import ModelBounds

KeepTokens = Callable[[Turn], npt.NDArray[np.bool_]]
"""Says which sampled tokens of a turn may train, [len(turn.token_ids)] bool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One rollout with its advantage.

    Example: `52910=` answered `01259` by a stop: prompt_token_ids [6], token_ids [6] (the stop token trains too),
    loss_mask all True, temperature 1.0, policy_lag 1.
    """

    rollout_id: str
    group_id: str
    prompt_token_ids: npt.NDArray[np.int32]
    """[P] what the model was given before its first sampled token."""
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
    """Largest lag of its spans: optimizer steps between a span's version and the trainer's."""

    @property
    def num_trained_tokens(self) -> int:
        """Tokens that enter the loss."""
        return int(self.loss_mask.sum())

    @property
    def has_gradient(self) -> bool:
        """Whether anything is learned from it: it has tokens that train, and an advantage that is not 0."""
        return self.advantage != 0 and bool(self.loss_mask.any())

    @property
    def num_tokens(self) -> int:
        """Length of the whole sequence, prompt included."""
        return len(self.prompt_token_ids) + len(self.token_ids)


def imitated(prompt_token_ids: npt.ArrayLike, token_ids: npt.ArrayLike) -> TrainingSample:
    """A sample to imitate, for the loss `nll`: all of `token_ids` train, whatever they are worth."""
    answer = np.asarray(token_ids, dtype=np.int32)
    return TrainingSample(
        rollout_id="",
        group_id="",
        prompt_token_ids=np.asarray(prompt_token_ids, dtype=np.int32),
        token_ids=answer,
        behavior_logprobs=np.zeros(len(answer), dtype=np.float32),
        loss_mask=np.ones(len(answer), dtype=np.bool_),
        reward=0.0,
        advantage=0.0,
        temperature=1.0,
        max_tokens=max(1, len(answer)),
        policy_lag=0,
    )


def is_truncated(rollout: RolloutGenerated) -> bool:
    """Whether the last turn ended at the token limit: finish reason `length`."""
    return bool(rollout.turns) and rollout.turns[-1].finish_reason is FinishReason.LENGTH


def training_sample(
    scored: RolloutScored,
    *,
    advantage: float,
    lag: int,
    bounds: ModelBounds,
    keep_tokens: KeepTokens | None = None,
    train_truncated: bool = False,
) -> TrainingSample:
    """The training sample of a completed, scored rollout that is within `bounds`.

    A turn after the first must extend all of the turn before it; its prompt tokens follow there, with mask False.
    `keep_tokens` masks further tokens (lag_scope=token). All tokens of a truncated sample are masked, and its reward is
    in the baseline alone, unless `train_truncated`. Raises `BadMessageError` if there is nothing to learn from:
    no reward, no turns, an empty prompt, a turn that branches off.
    """
    rollout = scored.rollout
    if scored.scoring.reward is None or not rollout.turns:
        raise BadMessageError(f"rollout {rollout.rollout_id} has no reward or no turns: only completed rollouts train")
    if not len(rollout.turns[0].prompt_token_ids):
        raise BadMessageError(f"rollout {rollout.rollout_id} has an empty prompt: nothing predicts its first token")
    token_ids, behavior_logprobs, loss_mask = _concatenated(rollout, keep_tokens)
    return TrainingSample(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        prompt_token_ids=rollout.turns[0].prompt_token_ids,
        token_ids=token_ids,
        behavior_logprobs=behavior_logprobs,
        loss_mask=loss_mask & (train_truncated or not is_truncated(rollout)),
        reward=scored.scoring.reward,
        advantage=advantage,
        temperature=rollout.prompt.sampling.temperature,
        max_tokens=min(rollout.prompt.sampling.max_tokens, bounds.max_tokens),
        policy_lag=lag,
    )


def _concatenated(
    rollout: RolloutGenerated, keep_tokens: KeepTokens | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Token ids, behavior logprobs and mask of everything that follows the first turn's prompt."""
    if len(rollout.turns) == 1:
        # As below, without copies: most rollouts are one turn, and there are hundreds in a step.
        (turn,) = rollout.turns
        kept = keep_tokens(turn) if keep_tokens else np.ones(len(turn.token_ids), dtype=np.bool_)
        return turn.token_ids, turn.behavior_logprobs, kept
    token_ids, logprobs, masks = [], [], []
    length = 0
    for index, turn in enumerate(rollout.turns):
        given = len(turn.prompt_token_ids)
        if index:
            _refuse_branch(rollout, index, length)
            token_ids.append(turn.prompt_token_ids)
            logprobs.append(np.zeros(given, dtype=np.float32))
            masks.append(np.zeros(given, dtype=np.bool_))
        token_ids.append(turn.token_ids)
        logprobs.append(turn.behavior_logprobs)
        masks.append(keep_tokens(turn) if keep_tokens else np.ones(len(turn.token_ids), dtype=np.bool_))
        length += given + len(turn.token_ids)
    return np.concatenate(token_ids), np.concatenate(logprobs), np.concatenate(masks)


def _refuse_branch(rollout: RolloutGenerated, index: int, length: int) -> None:
    turn = rollout.turns[index]
    if turn.prefix_turn != index - 1 or turn.prefix_tokens != length:
        raise BadMessageError(
            f"rollout {rollout.rollout_id}: turn {index} extends {turn.prefix_tokens} tokens of turn "
            f"{turn.prefix_turn}, expected all {length} tokens of turn {index - 1}: only chains of turns train"
        )
