"""Continuous batching over one KV cache: between two decode steps rows join and leave, and weights may change.

The keys and values of a layer are [B, heads, T, width]. Rows are padded on the left to the same T.

A row's cache covers all of its tokens except the newest one. The next step computes the keys and values of that token,
and samples the token after it. So after an update that keeps the cache, the old weights computed everything before the
newest token, and the new weights compute the newest token and all that follow.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rollstream.engines.protocol import GenerationRequest
from rollstream.engines.spans import SpanRecorder
from rollstream.process.begun import Listener
from rollstream.schemas.prompt import Sampling

Layers = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request that is being answered, with everything sampled so far."""

    request: GenerationRequest
    chance: random.Random
    listener: Listener
    """Told of the version that samples the first token."""
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: SpanRecorder = field(default_factory=SpanRecorder)

    def tokens(self) -> tuple[int, ...]:
        return (*self.request.prompt_token_ids.tolist(), *self.sampled)


class DecodingBatch:
    """The rows that generate now. Not thread-safe: its methods must not run at the same time."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._layers: Layers = []
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=model.device)
        self.rows: list[Row] = []

    @torch.inference_mode()
    def step(self, weight_version: int) -> None:
        """Sample one token for every row."""
        if not self.rows:
            return
        newest = torch.tensor([[row.sampled[-1]] for row in self.rows], device=self.model.device)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(dim=1, keepdim=True) - 1
        logits, self._layers = self._forward(newest, self._mask, positions, self._layers)
        self._note(self.rows, logits, weight_version)

    @torch.inference_mode()
    def admit(self, rows: Sequence[Row], weight_version: int) -> None:
        """Compute the cache of new rows and sample one token for each. Equal prompts are computed once."""
        by_length: defaultdict[int, dict[tuple[int, ...], list[Row]]] = defaultdict(dict)
        for row in rows:
            by_length[len(row.tokens())].setdefault(row.tokens(), []).append(row)
        for length, same in by_length.items():
            self._prefill(length, same, weight_version)

    @torch.inference_mode()
    def keep(self, indices: Sequence[int]) -> None:
        """Drop all other rows, and the columns of the cache that only they needed."""
        self.rows = [self.rows[index] for index in indices]
        if not self.rows:
            self._layers, self._mask = [], self._mask[:0, :0]
            return
        kept = torch.tensor(indices, device=self.model.device)
        mask = self._mask[kept]
        used = int(mask.sum(dim=1).max())
        self._mask = mask[:, -used:]
        self._layers = [(keys[kept, :, -used:], values[kept, :, -used:]) for keys, values in self._layers]

    def _prefill(self, length: int, same: dict[tuple[int, ...], list[Row]], weight_version: int) -> None:
        """Compute rows of one length. They need no padding: the softmax of a query without any key would be NaN."""
        device = self.model.device
        tokens = torch.tensor(list(same), device=device)
        mask = torch.ones_like(tokens)
        positions = torch.arange(length, device=device).expand(len(same), -1)
        logits, layers = self._forward(tokens, mask, positions, [])
        copies = torch.tensor([len(rows) for rows in same.values()], device=device)
        rows = [row for rows in same.values() for row in rows]
        repeated = [
            (keys.repeat_interleave(copies, dim=0), values.repeat_interleave(copies, dim=0)) for keys, values in layers
        ]
        self._note(rows, logits.repeat_interleave(copies, dim=0), weight_version)
        self._merge(rows, repeated, mask.repeat_interleave(copies, dim=0))

    def _merge(self, rows: list[Row], layers: Layers, mask: torch.Tensor) -> None:
        if self.rows:
            width = max(mask.shape[1], self._mask.shape[1])
            mask = torch.cat([_padded(self._mask, width, dim=1), _padded(mask, width, dim=1)])
            layers = [
                (_stacked(old_keys, keys, width), _stacked(old_values, values, width))
                for (old_keys, old_values), (keys, values) in zip(self._layers, layers, strict=True)
            ]
        self.rows, self._layers, self._mask = [*self.rows, *rows], layers, mask

    def _forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, layers: Layers
    ) -> tuple[torch.Tensor, Layers]:
        """Logits of the last position [B, V], and the cache with `tokens` added."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for index, (keys, values) in enumerate(layers):
            cache.update(keys, values, index)
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1], [(layer.keys, layer.values) for layer in cache.layers]

    @staticmethod
    def _note(rows: Sequence[Row], logits: torch.Tensor, weight_version: int) -> None:
        samplings = [row.request.sampling for row in rows]
        chosen, logprobs = choose_tokens(logits, samplings, [row.chance.random() for row in rows])
        for row, token, logprob in zip(rows, chosen, logprobs, strict=True):
            row.spans.note(weight_version, len(row.sampled))
            row.sampled.append(token)
            row.logprobs.append(logprob)


def _padded(values: torch.Tensor, width: int, *, dim: int) -> torch.Tensor:
    """`values` with zeros added on the left of dimension `dim` (1 of 2, or 2 of 4) up to `width`."""
    missing = width - values.shape[dim]
    # torch's pad takes two numbers a dimension and begins with the last one.
    after = 2 * (values.dim() - 1 - dim) * (0,)
    return torch.nn.functional.pad(values, (*after, missing, 0)) if missing else values


def _stacked(old: torch.Tensor, new: torch.Tensor, width: int) -> torch.Tensor:
    return torch.cat([_padded(old, width, dim=2), _padded(new, width, dim=2)])


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
