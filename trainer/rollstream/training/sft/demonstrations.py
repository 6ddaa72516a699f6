"""What a model learns to imitate: an environment's demonstrations, or the answers of rollouts."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.environments.protocol import Environment
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Message
from rollstream.training.learning.samples import TrainingSample, imitated
from rollstream.training.sft.settings import SftSettings

T = TypeVar("T")
Exchange = tuple[tuple[Message, ...], tuple[Message, ...], tuple[str, ...]]
"""Messages of a prompt, messages of its answer, tools as JSON texts."""

_SEED_OFFSET: Final = 1_000_003  # a producer with the same seed gives its tasks in another order
_SHUFFLED: Final = 1024


class Texts:
    """Prompts and answers as token ids of the model's tokenizer."""

    def __init__(self, model_path: Path) -> None:
        self._chat = ChatTokenizer(model_path)
        if self._chat.eos_token_id is None:
            raise ConfigurationError(f"the tokenizer of {model_path} has no stop token: answers would never end")
        self._stop = self._chat.eos_token_id

    def demonstration(self, prompt: Sequence[Message], tools: Sequence[str], answer: str) -> TrainingSample:
        """A sample to imitate; of its answer only the stop token at the end is a control token, whatever its text says.

        Raises ValueError if the chat template does not take the prompt.
        """
        return imitated(
            self._chat.tokenize(prompt, tools), np.append(self._chat.tokenize_text(answer), np.int32(self._stop))
        )


def of_environment(environment: Environment, texts: Texts, seed: int) -> Iterator[TrainingSample]:
    """Demonstrations of the split train, without end: each pass in another order, tasks without one left out."""
    for epoch in count(seed + _SEED_OFFSET):
        num_before = 0
        for task in environment.tasks("train", epoch):
            if task.demonstration is None:
                continue
            num_before += 1
            yield texts.demonstration(task.messages, (), task.demonstration)
        if not num_before:
            raise ConfigurationError(f"environment {environment.name!r} has no demonstrations to learn from")


class RolloutDemonstrations:
    """The answers of rollouts, `settings.epochs` times, or without end. Each pass is in another order.

    Each assistant message of an answer is a demonstration of its own, after all messages before it: so the model sees
    it as in a model call. Those that are too long for the model are left out, and counted in the first pass.
    """

    def __init__(self, exchanges: Iterable[Exchange], texts: Texts, settings: SftSettings, max_tokens: int) -> None:
        self._exchanges = exchanges
        self._texts = texts
        self._settings = settings
        self._max_tokens = max_tokens
        self.left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[TrainingSample]:
        """Raises `ConfigurationError` if a whole pass gave nothing."""
        for epoch in count() if self._settings.epochs is None else range(self._settings.epochs):
            num_before = 0
            left_out = self.left_out if epoch == 0 else Counter()
            for exchange in shuffled(self._exchanges, self._settings.learning.seed + epoch):
                for one in self._of(exchange, left_out):
                    num_before += 1
                    yield one
            if not num_before:
                reasons = ", ".join(f"{number} x {reason}" for reason, number in left_out.items())
                raise ConfigurationError(
                    f"no answer of the rollouts can be learned from ({reasons}): take a model with more positions"
                )

    def _of(self, exchange: Exchange, left_out: "Counter[str]") -> Iterator[TrainingSample]:
        for _, one in demonstrations_of(exchange, self._texts, self._max_tokens, left_out):
            yield one


def demonstrations_of(
    exchange: Exchange, texts: Texts, max_tokens: int | None, left_out: "Counter[str]"
) -> Iterator[tuple[int, TrainingSample]]:
    """Each assistant message of an answer, by its place there, after all messages before it.

    Those that can't be used, or have more than `max_tokens` with what is before them, are counted in `left_out`.
    """
    prompt, answer, tools = exchange
    for place, message in enumerate(answer):
        if message.role != "assistant":
            continue
        try:
            one = texts.demonstration((*prompt, *answer[:place]), tools, message.content)
        except ValueError:
            left_out["the chat template does not take the messages"] += 1
            continue
        if max_tokens is not None and one.num_tokens > max_tokens:
            left_out[f"longer than {max_tokens} tokens"] += 1
            continue
        yield place, one


def shuffled(stream: Iterable[T], seed: int) -> Iterator[T]:
    """`stream` in another order, with `_SHUFFLED` of them in memory: each comes about that much earlier or later."""
    chooser, waiting = random.Random(seed), list[T]()
    for one in stream:
        if len(waiting) < _SHUFFLED:
            waiting.append(one)
            continue
        chosen = chooser.randrange(_SHUFFLED)
        yield waiting[chosen]
        waiting[chosen] = one
    chooser.shuffle(waiting)
    yield from waiting
