"""The model calls of one attempt at a sample: their ids and seeds, each tried again by itself, long ones in pieces."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import NamedTuple

import numpy as np

from rollstream.engines.deadline import is_over, task_ends_at
from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.schemas.errors import EngineDeadError, EngineError, EngineLateError
from rollstream.schemas.prompt import Sampling
from rollstream.schemas.rollout import FinishReason, WeightSpan


class Begun(NamedTuple):
    """A call that goes on where it was: `note` keeps its tokens so far, `found` are those that there are already."""

    note: Callable[[Generation], Awaitable[None]]
    found: Generation | None = None


def sample_seed(sampling: Sampling, sample_index: int, turn: int = 0, begun: int = 0) -> int | None:
    """The call's own seed: 63 bits of sha256(seed, sample_index, turn, tokens before it). None: the engine chooses one.

    That of the first turn does without the turn, and of the first piece without the tokens.
    """
    if sampling.seed is None:
        return None
    named = f"{sampling.seed}/{sample_index}" + (f"/{turn}" if turn or begun else "") + (f"/{begun}" if begun else "")
    # 63 bits, because engines take the seed as a signed integer of 64 bits.
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "little") >> 1


@dataclass(eq=False, slots=True)
class ModelCalls:
    """The calls of sample `sample_index`. `name`: of the attempt, unique; request ids begin with it.

    `retried` is told of each engine error.
    """

    engine: Engine
    _: KW_ONLY
    name: str
    sample_index: int
    max_tries: int
    retried: Callable[[], None]
    piece_tokens: int = 0
    """A longer answer is asked in pieces of so many tokens, and is kept after each; 0: never."""

    async def answer(self, request: GenerationRequest, turn: int, begun: Begun | None = None) -> Generation:
        """The answer to `request`, whose id and seed are chosen here. Raises `EngineError` if no try has one.

        With `begun` a long answer is asked in pieces. Each is a request that goes on from the tokens before.
        """
        found = None if begun is None else begun.found
        # A stop text may lie across two pieces; without tokens a request can't say what it goes on from.
        is_cut = begun is not None and len(request.prompt_token_ids) > 0 and not request.sampling.stop
        most = self.piece_tokens if is_cut and self.piece_tokens else request.max_tokens
        while found is None or len(found.token_ids) < request.max_tokens:
            have = 0 if found is None else len(found.token_ids)
            wanted = min(most, request.max_tokens - have)
            try:
                piece = await self._tried(_piece(request, found, wanted), turn, have)
            except EngineLateError:
                if found is None:
                    raise
                break
            found = piece if found is None else self._joined(found, piece)
            if begun is None or piece.finish_reason is not FinishReason.LENGTH or len(piece.token_ids) < wanted:
                return found
            if have + wanted < request.max_tokens:
                await begun.note(found)
        return replace(found, finish_reason=FinishReason.LENGTH)

    async def _tried(self, request: GenerationRequest, turn: int, have: int) -> Generation:
        request = replace(request, seed=sample_seed(request.sampling, self.sample_index, turn, have))
        place = f"{turn}.{have}" if have else f"{turn}"
        for number in range(self.max_tries):
            try:
                return await self.engine.generate(replace(request, request_id=f"{self.name}-{place}-{number}"))
            # It answers no other call either.
            except EngineDeadError:
                raise
            except EngineError:
                if is_over(task_ends_at()):  # most likely no fault of the engine's
                    raise
                self.retried()
                if number + 1 == self.max_tries:
                    raise
        raise AssertionError("max_tries is at least 1")

    def _joined(self, first: Generation, second: Generation) -> Generation:
        """Both pieces as one answer."""
        token_ids = np.concatenate([first.token_ids, second.token_ids])
        return replace(
            second,
            token_ids=token_ids,
            behavior_logprobs=np.concatenate([first.behavior_logprobs, second.behavior_logprobs]),
            weight_spans=_spans(first.weight_spans, second.weight_spans, len(first.token_ids)),
            text=self.engine.detokenize(token_ids),
        )


def _piece(request: GenerationRequest, found: Generation | None, wanted: int) -> GenerationRequest:
    """The request for the next `wanted` tokens after those that were found."""
    if found is None:
        return replace(request, max_tokens=wanted)
    tokens = np.concatenate([request.prompt_token_ids, found.token_ids])
    return replace(request, prompt_token_ids=tokens, max_tokens=wanted)


def _spans(first: tuple[WeightSpan, ...], second: tuple[WeightSpan, ...], offset: int) -> tuple[WeightSpan, ...]:
    """The spans of both pieces over their tokens together; `offset`: tokens of the first."""
    moved = [one.model_copy(update={"start": one.start + offset, "end": one.end + offset}) for one in second]
    if first and moved and first[-1].weight_version == moved[0].weight_version:
        moved[0] = moved[0].model_copy(update={"start": first[-1].start})
        first = first[:-1]
    return (*first, *moved)
