"""A model of a few parameters that is none of transformers', and losses over its logits. Imports torch."""

import torch
from torch import Tensor, nn

VOCABULARY = 8


class ToyModel(nn.Module):
    """Ids [B, L] → logits [B, L, VOCABULARY] that depend on the token alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(VOCABULARY, 4)
            self.head = nn.Linear(4, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens))
        return logits


def token_mean(logits: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
    """The mean of -logprob over the tokens that train."""
    logprobs = logits.log_softmax(dim=-1).gather(-1, labels[..., None]).squeeze(-1)
    return -(logprobs * loss_mask).sum() / loss_mask.sum()


def two_rows() -> dict[str, list[list[float]]]:
    """A prompt of 2 and an answer of 2 tokens; a prompt of 1 and an answer of 1."""
    return {"tokens": [[1, 2, 3, 4], [5, 6]], "loss_mask": [[0, 0, 1, 1], [0, 1]]}
