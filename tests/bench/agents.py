"""`python -m tests.bench agents`: what a session of several turns costs beyond the model calls themselves."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Final

import click
import numpy as np
from numpy.typing import NDArray

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner, identity_of
from rollstream.agents.session import Session
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, WeightSpan
from tests.bench.pairs import count_option, scratch, tell
from tests.harness.builders import a_prompt
from tests.harness.chat_templates import QWEN3, byte_level, write_chat_tokenizer

_TARGET_MS: Final = 1.0
_ANSWER: Final = "It is 4, and what comes next follows from it."
_WORD: Final = "What is 2 + 2? "


class AnsweringEngine(ScriptedEngine):
    """Answers at once, always the same, over a real tokenizer and chat template. It keeps its requests."""

    def __init__(self, directory: Path, max_model_len: int) -> None:
        super().__init__(EngineSettings(kind="scripted", model_path=directory / "none", max_model_len=max_model_len))
        self._tokenizer = ChatTokenizer(directory)
        stop = self._tokenizer.tokenize((Message(role="assistant", content=""),), ())
        found = self._tokenizer.tokenize_text(_ANSWER).tolist()
        # The template writes it after every message.
        self._said = np.array([*found, int(stop[np.flatnonzero(stop == stop[0])[1] - 2])], dtype=np.int32)
        self.requests: list[GenerationRequest] = []

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        """As every engine with a tokenizer."""
        return self._tokenizer.tokenize(messages, tools)

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        """As every engine with a tokenizer."""
        return self._tokenizer.extend(prompt, sampled, before, messages, tools)

    async def generate(self, request: GenerationRequest) -> Generation:
        """The answer and its stop token."""
        self.requests.append(request)
        return Generation(
            token_ids=self._said,
            behavior_logprobs=np.zeros(len(self._said), dtype=np.float32),
            weight_spans=(WeightSpan(weight_version=0, start=0, end=len(self._said)),),
            finish_reason=FinishReason.STOP,
            text=_ANSWER,
        )


class Talker:
    """Says the same after each answer."""

    num_turns: ClassVar[int] = 2

    async def run(self, session: Session) -> None:
        """As many turns as the bench wants."""
        await session.generate()
        for _ in range(self.num_turns - 1):
            await session.generate((Message(role="user", content=_WORD),))


@click.command("agents")
@count_option("--samples", 20, 1, "Samples; the median counts.")
@count_option("--turns", 16, 2, "Turns of a sample.", most=64)
@count_option("--tokens", 8000, 16, "Tokens of the prompt.")
def command(samples: int, turns: int, tokens: int) -> None:
    """CPU of a turn beyond the engine's call and the first prompt's tokens, in ms; at most 1 at 8,000 tokens."""
    with scratch() as directory:
        write_chat_tokenizer(directory, QWEN3, byte_level())
        engine = AnsweringEngine(directory, max_model_len=2 * tokens + 100 * turns)
        found = [asyncio.run(_extra_ms(engine, turns, tokens)) for _ in range(samples)]
    figures = {"ratio": round(median(found), 3), "unit": "ms of CPU a turn", "target": _TARGET_MS,
               "most": round(max(found), 3)}  # fmt: skip
    tell("agents", figures, {"samples": samples, "turns": turns, "tokens": tokens})


async def _extra_ms(engine: AnsweringEngine, turns: int, tokens: int) -> float:
    Talker.num_turns = turns
    agents = Agents({"talker": Declaration(path=f"{__name__}.Talker")})
    bounds = SampleBounds(deadline_seconds=600.0, max_tries=1)
    runner = SampleRunner(engine, identity=identity_of(engine, "bench"), bounds=bounds, agents=agents)
    prompt = _prompt(engine, tokens)
    engine.requests.clear()
    began = time.process_time()
    rollout = await runner.run(prompt, 0)
    whole = time.process_time() - began
    _check(rollout, turns)
    return 1e3 * (whole - await _bare(engine, prompt)) / turns


async def _bare(engine: AnsweringEngine, prompt: PromptSubmitted) -> float:
    """CPU seconds of the same calls, and of the first prompt's tokens."""
    requests = list(engine.requests)
    # The tokenizer keeps the last prompt by identity.
    fresh = tuple(prompt.messages)[:0] + tuple(message.model_copy() for message in prompt.messages)
    began = time.process_time()
    engine.tokenize(fresh, ())
    for request in requests:
        await engine.generate(request)
    return time.process_time() - began


def _prompt(engine: AnsweringEngine, tokens: int) -> PromptSubmitted:
    per_word = len(engine._tokenizer.tokenize_text(_WORD * 100)) / 100
    return a_prompt(
        messages=(Message(role="user", content=_WORD * int(tokens / per_word)),),
        agent=AgentChoice(name="talker"), sampling=Sampling(max_tokens=64), purpose=Purpose.TRAIN,
    )  # fmt: skip


def _check(rollout: RolloutGenerated, turns: int) -> None:
    extended: Any = [turn.prefix_turn for turn in rollout.turns]
    assert extended == [None, *range(turns - 1)], f"{rollout.failure}: turns began anew: {extended}"
