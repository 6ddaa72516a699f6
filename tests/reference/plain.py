"""The loss of one update by hand in plain PyTorch, for what TRL has not. Shares no code with what it checks.

That is: the policy that sampled as the denominator of the ratio, reinforce, k2, groups of different temperatures, a
sample without reward, and groups of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from rollstream.schemas.rollout import FinishReason
from rollstream.schemas.scored import RolloutScored
from tests.reference.cases import CAP, HIGH, LOW
from tests.reference.rollouts import MAX_TOKENS, columns, token_logprobs

KL_COEFFICIENT: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """The sampled tokens of one rollout; all tensors [N]."""

    current: Tensor
    behavior: Tensor
    reference: Tensor
    advantage: float


def plain_loss(
    name: str, policy: Any, reference: Any, groups: Sequence[Sequence[RolloutScored]], *, are_ones: bool = False
) -> Tensor:
    """Of all samples; `name` is a loss with old=behavior, reinforce, or k2: DAPO with that divergence.

    `are_ones`: each of `groups` has the groups of one of one environment.
    """
    sums, counts = [], []
    for group in groups:
        completed = [scored for scored in group if scored.scoring.reward is not None]
        rewards = [float(scored.scoring.reward or 0) for scored in completed]
        for place, scored in enumerate(completed):
            others = rewards[:place] + rewards[place + 1 :] if are_ones else rewards
            tokens = _tokens(scored, rewards[place] - sum(others) / len(others), policy, reference)
            is_cut = scored.rollout.turns[-1].finish_reason is FinishReason.LENGTH
            sums.append(_losses(name, tokens).sum() * (0 if is_cut else 1))
            counts.append(0 if is_cut else len(tokens.current))
    if name in ("grpo", "gspo"):
        return torch.stack([total / max(count, 1) for total, count in zip(sums, counts, strict=True)]).mean()
    return torch.stack(sums).sum() / (len(sums) * MAX_TOKENS if name == "dr_grpo" else sum(counts))


def _tokens(scored: RolloutScored, advantage: float, policy: Any, reference: Any) -> _Tokens:
    found = {name: values[0] for name, values in columns([[scored]]).items()}
    mask = torch.tensor(found["env_mask"], dtype=torch.bool)

    def logprobs(model: Any) -> Tensor:
        ids = found["prompt_ids"] + found["completion_ids"]
        return token_logprobs(model, ids, scored.rollout.prompt.sampling.temperature)[-len(mask) :][mask]

    behavior = torch.tensor(found["logprobs"], dtype=torch.float64)[mask]
    return _Tokens(
        current=logprobs(policy), behavior=behavior, reference=logprobs(reference).detach(), advantage=advantage
    )


def _losses(name: str, tokens: _Tokens) -> Tensor:
    current, advantage = tokens.current, tokens.advantage
    weight = torch.exp(current.detach() - tokens.behavior).clamp(max=CAP)
    if name == "reinforce":
        return -weight * advantage * current
    if name == "k2":
        return -weight * advantage * current + KL_COEFFICIENT * (current - tokens.reference).square() / 2
    ratio = torch.exp(current - tokens.behavior)
    if name == "cispo":
        return -ratio.clamp(max=1 + HIGH).detach() * advantage * current
    if name == "gspo":
        ratio = torch.exp((current - tokens.behavior).mean()) * torch.ones_like(current)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
