"""Samples the next token of every row of a batch, and computes its behavior logprob."""

from collections.abc import Sequence

import torch

from rollstream.schemas.prompt import Sampling


def choose_tokens(
    logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token id and its logprob per row.

    `logits` [B, V]. `uniforms`: B numbers in [0, 1), the only source of chance, so that a row's tokens depend on its
    own seed and not on other rows. Logprobs are those of the distribution that was sampled from: divided by the
    temperature, truncated by top_k and top_p. Temperature 0 takes the most likely token; its logprob is then that of
    temperature 1.
    """
    temperatures = torch.tensor([sampling.temperature or 1.0 for sampling in samplings], device=logits.device)
    scores = logits.float() / temperatures[:, None]
    for row, sampling in enumerate(samplings):
        if sampling.temperature and (sampling.top_k or sampling.top_p < 1):
            scores[row] = _truncated(scores[row], sampling)
    logprobs = scores.log_softmax(dim=-1)
    # In float64: the sum over a large vocabulary would lose small probabilities in float32.
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    targets = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    drawn = (cumulative <= targets).sum(dim=-1).clamp(max=logits.shape[1] - 1)
    is_greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings], device=logits.device)
    chosen = torch.where(is_greedy, scores.argmax(dim=-1), drawn)
    return chosen.tolist(), logprobs.gather(1, chosen[:, None]).squeeze(1).tolist()


def _truncated(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """`scores` [V] with -inf for the tokens that top_k and then top_p exclude. The most likely token always stays."""
    ordered, order = scores.sort(descending=True)
    if sampling.top_k:
        ordered[sampling.top_k :] = -torch.inf
    probabilities = ordered.softmax(dim=-1)
    # The probability of all more likely tokens: 0 for the first, which therefore stays.
    before = probabilities.cumsum(dim=-1) - probabilities
    ordered[before >= sampling.top_p] = -torch.inf
    return torch.empty_like(scores).scatter_(0, order, ordered)
