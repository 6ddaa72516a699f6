"""One answer to a client's HTTP call: who asked, and what was sampled. Knows neither HTTP nor vLLM."""

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rollstream.http.keys import ClientKey
from rollstream.schemas.prompt import Message, Sampling
from rollstream.schemas.rollout import FinishReason, WeightSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call, and what the call says of itself.

    `session` is empty for a call that belongs to none. `subject` is the HMAC of a person's id, empty if none is named.
    `messages` and `tools` are what was asked, for people and rubrics: what the model was given are the token ids.
    """

    name: str
    """Name of the key."""
    key: ClientKey
    route: str
    session: str
    subject: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()


CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
"""Whose call the current task answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedChoice:
    """One choice of a response, whole: token_ids [T], behavior_logprobs [T], spans over [0, T)."""

    number: int
    token_ids: NDArray[np.int32]
    behavior_logprobs: NDArray[np.float32]
    weight_spans: tuple[WeightSpan, ...]
    finish_reason: FinishReason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """A prompt that was answered, with all its choices; their number is the size of its group.

    `sampling`: as used, not as asked. `is_plain` and `other_sampling`: see `Turn.is_plain` and `Turn.sampling`.
    """

    response_id: str
    """As the client saw it."""
    caller: Caller
    prompt_token_ids: NDArray[np.int32]
    sampling: Sampling
    is_plain: bool
    other_sampling: str
    choices: tuple[ServedChoice, ...]
    started_at: datetime
    finished_at: datetime


class Recorder(Protocol):
    """Where answers are recorded."""

    def refuse_if_full(self) -> None:
        """Raise `SpoolFullError` if no answer can be recorded now: then no call begins."""
        ...

    async def keep(self, call: ServedCall) -> None:
        """Record the answer to one prompt; the client gets the last of it only after this."""
        ...
