"""A running vLLM engine and requests for it, shared by the benches of generation."""

import asyncio
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.build import build_engine
from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.engines.settings import EngineSettings
from rollstream.environments.sort_digits import SortDigits
from rollstream.local.cores import CoreDivision, divide_cores, thread_environment
from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from tests.bench.model_sizes import MODEL_SIZES

MAX_NUM_SEQS: Final = 256
_KV_CACHE_BYTES: Final = 2**31
"""Room for `MAX_NUM_SEQS` requests of full length. With less the engine preempts requests, and its best concurrency is
between two of those that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model and the length of its answers: `max_tokens` tokens; None: the digits and a stop token."""

    group_size: int
    max_tokens: int | None
    max_model_len: int
    target: float
    model: str

    @property
    def longest(self) -> int:
        """Most tokens of an answer."""
        return self.max_tokens or SortDigits.sampling.max_tokens


SHAPES: Final = {
    "demo": Shape(group_size=16, max_tokens=None, max_model_len=32, target=0.8, model="demo"),
    "10m": Shape(group_size=8, max_tokens=200, max_model_len=256, target=0.95, model="10m"),
}


def take_engine_cores() -> CoreDivision:
    """Run this process on the cores that the engine has in a local run. The bench's broker must run on `rest`."""
    cores = divide_cores()
    assert cores.engine.cores is not None
    os.environ.update(thread_environment(cores.engine))
    os.sched_setaffinity(0, cores.engine.cores)
    return cores


async def started_engine(model: Path, *, max_model_len: int) -> Engine:
    """vLLM with the model in directory `model`, started."""
    settings = EngineSettings(
        model_path=model, max_model_len=max_model_len, max_num_seqs=MAX_NUM_SEQS, kv_cache_bytes=_KV_CACHE_BYTES
    )
    engine = build_engine(settings)
    await engine.start(weight_version=0)
    return engine


def write_model(path: Path, shape: Shape, *, seed: int = 0) -> None:
    """Write a model with random weights and no stop token, so that every answer has exactly the wanted length.

    Another process writes it, because the engine must start before this process uses torch.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        other.submit(write_tiny_model, path, seed=seed, **MODEL_SIZES[shape.model]).result()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        file = path / name
        document = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in document.items() if not key.startswith("eos_token")}))


def prompts(shape: Shape, run: str) -> Iterator[PromptSubmitted]:
    """Prompts without end, the same in every run.

    The first ones have shorter answers, of evenly growing length, so that concurrent samples don't end at once.
    """
    first_groups = MAX_NUM_SEQS // shape.group_size
    for row, task in enumerate(SortDigits().tasks("train", 0)):
        length = shape.max_tokens or len(task.reference_answer or "") + 1
        if row < first_groups:
            length = max(1, length * (row + 1) // first_groups)
        yield PromptSubmitted(
            prompt_id=task.task_id,
            group_id=group_id(run, task.task_id, 0),
            purpose=Purpose.TRAIN,
            environment="sort_digits",
            messages=task.messages,
            reference_answer=task.reference_answer,
            sampling=Sampling(max_tokens=length),
            group_size=shape.group_size,
            submitted_at=utc_now(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One request that has ended. Times are Unix seconds."""

    began: float
    ended: float
    num_tokens: int


class Watched:
    """An engine, and since when its requests run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._began: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerationRequest) -> Generation:
        """The engine's answer; the request counts as running meanwhile."""
        self._began[request.request_id] = time.time()
        try:
            return await self._engine.generate(request)
        finally:
            self._began.pop(request.request_id, None)

    def runs_since_before(self, unix_seconds: float) -> bool:
        """Whether a request runs that began before this moment."""
        return any(began < unix_seconds for began in self._began.values())


@dataclass(slots=True, kw_only=True)
class DirectLoad:
    """Keeps `concurrency` requests of a shape running in an engine, without Kafka or a stage."""

    engine: Engine
    shape: Shape
    concurrency: int
    answers: list[EndedRequest] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers that have ended."""
        return sum(answer.num_tokens for answer in self.answers)

    async def __aenter__(self) -> "DirectLoad":
        requests = self._requests()
        self._tasks = [asyncio.create_task(self._work(requests)) for _ in range(self.concurrency)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _work(self, requests: Iterator[GenerationRequest]) -> None:
        while True:
            began = time.time()
            answer = await self.engine.generate(next(requests))
            self.answers.append(EndedRequest(began=began, ended=time.time(), num_tokens=len(answer.token_ids)))

    def _requests(self) -> Iterator[GenerationRequest]:
        names = (f"direct-{time.monotonic_ns()}-{number}" for number in itertools.count())
        tokens: dict[str, NDArray[np.int32]] = {}
        for prompt in prompts(self.shape, "direct"):
            text = prompt.messages[0].content
            if text not in tokens:
                found = self.engine.tokenize(prompt.messages, prompt.tools)
                assert found is not None, "this bench counts tokens, so it takes engines that have a tokenizer"
                tokens[text] = found
            for _ in range(prompt.group_size):
                yield GenerationRequest(
                    request_id=next(names),
                    prompt_token_ids=tokens[text],
                    sampling=prompt.sampling,
                    max_tokens=prompt.sampling.max_tokens,
                    seed=None,
                )
