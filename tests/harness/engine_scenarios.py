"""What tests do with an engine, as coroutines that run in the engine's process."""

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from prometheus_client import REGISTRY

from rollstream.agents.journal import SampleJournal
from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.protocol import Engine, Generation, GenerationRequest, LoadReport
from rollstream.process.begun import listening
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import EngineError, EngineLateError
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from rollstream.schemas.rollout import FinishReason, RolloutGenerated
from tests.harness.builders import a_generator

QUESTION = "5291047386" * 6 + "="
# Longer than a block of vLLM's cache, 128 tokens on a CPU: a later request can reuse what an earlier one computed.
LONG_QUESTION = "5291047386" * 20 + "="
_DEADLINE_SECONDS = 60.0
Asked = dict[str, Any]


async def generate(engine: Engine, asked: list[Asked]) -> list[Generation]:
    """The answers to requests side by side; see `_request` for what each may ask."""
    return await asyncio.gather(*(engine.generate(_request(engine, one, index)) for index, one in enumerate(asked)))


async def exported(engine: Engine) -> dict[str, float]:
    """Every sample of the metrics that this process exports, without labels; of several of a name the last."""
    return {sample.name: sample.value for metric in REGISTRY.collect() for sample in metric.samples}


async def refusal(engine: Engine, asked: Asked) -> str:
    """The message with which the engine refuses, or "accepted"."""
    try:
        await engine.generate(_request(engine, asked, 0))
    except EngineError as error:
        return str(error)
    return "accepted"


async def load(engine: Engine, weight_version: int, path: Path) -> LoadReport:
    """Load a version while nothing runs."""
    return await engine.load_weights(weight_version, path)


async def load_refusal(engine: Engine, weight_version: int, path: Path) -> str:
    """The error with which the engine refuses a version, or "loaded"."""
    try:
        await engine.load_weights(weight_version, path)
    except EngineError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


async def load_while_generating(
    engine: Engine, asked: list[Asked], weight_version: int, before: tuple[int, Path], after: Path
) -> list[Generation]:
    """Answers during an update from `before` to `weight_version` at `after`; at least three have spans of both."""
    return [answer for answer, _ in await load_while_listening(engine, asked, weight_version, before, after)]


async def load_while_listening(
    engine: Engine, asked: list[Asked], weight_version: int, before: tuple[int, Path], after: Path
) -> list[tuple[Generation, list[int]]]:
    """The same, each answer with the versions that the engine said it began with.

    Tried again with another delay until the update comes in the middle of that many answers.
    """
    give_up_at = time.monotonic() + _DEADLINE_SECONDS
    delay = 0.05
    while time.monotonic() < give_up_at:
        await engine.load_weights(*before)
        running = [asyncio.create_task(_heard(engine, _request(engine, one, i))) for i, one in enumerate(asked)]
        await asyncio.sleep(delay)
        await engine.load_weights(weight_version, after)
        pairs = await asyncio.gather(*running)
        straddling = [answer for answer, _ in pairs if len(answer.weight_spans) > 1]
        if len(straddling) >= 3:
            return pairs
        started_late = all(answer.weight_spans[0].weight_version == weight_version for answer, _ in pairs)
        delay *= 2 if started_late else 0.7
    raise TimeoutError("no update landed in the middle of three samples")


async def samples_while_loading(
    engine: Engine, prompts: list[PromptSubmitted], versions: list[tuple[int, Path]], piece_tokens: int
) -> list[RolloutGenerated]:
    """Samples of an agent of two turns, asked in pieces, while these versions are loaded one after the other."""

    async def keep(_progress: TurnProgress, _is_urgent: bool) -> None:
        """Nobody goes on with them."""

    bounds = SampleBounds(deadline_seconds=_DEADLINE_SECONDS, max_tries=1, piece_tokens=piece_tokens)
    agents = Agents({"two_turns": Declaration(path="tests.harness.tool_agents.ToolUser")})
    runner = SampleRunner(engine, identity=a_generator(), bounds=bounds, agents=agents)
    running = [
        asyncio.create_task(runner.run(one, 0, None, SampleJournal("r", f"a{index}", "g", keep)))
        for index, one in enumerate(prompts)
    ]
    for version, path in versions:
        await engine.load_weights(version, path)
    return await asyncio.gather(*running)


async def end_while_generating(
    engine: Engine, asked: list[Asked], update: tuple[int, Path] | None = None
) -> list[Generation | None]:
    """Answers to requests whose deadline ends at least three of them; None: without a token by then.

    Tried again with another deadline until that is so. `update`: a version that is loaded meanwhile.
    """
    give_up_at = time.monotonic() + _DEADLINE_SECONDS
    seconds = 0.1
    while time.monotonic() < give_up_at:
        ends_at = time.monotonic() + seconds
        requests = [replace(_request(engine, one, index), ends_at=ends_at) for index, one in enumerate(asked)]
        running = [asyncio.create_task(_in_time(engine, one)) for one in requests]
        if update is not None:
            await asyncio.sleep(seconds / 2)
            await engine.load_weights(*update)
        answers = await asyncio.gather(*running)
        if sum(is_cut(one, request.max_tokens) for one, request in zip(answers, requests, strict=True)) >= 3:
            return answers
        seconds *= 2 if None in answers else 0.7
    raise TimeoutError("no deadline came in the middle of three samples")


def is_cut(answer: Generation | None, max_tokens: int) -> bool:
    """Whether a deadline ended it."""
    return answer is not None and answer.finish_reason is FinishReason.LENGTH and len(answer.token_ids) < max_tokens


async def _in_time(engine: Engine, request: GenerationRequest) -> Generation | None:
    try:
        return await engine.generate(request)
    except EngineLateError:
        return None


async def _heard(engine: Engine, request: GenerationRequest) -> tuple[Generation, list[int]]:
    told: list[int] = []
    with listening(told.append):
        return await engine.generate(request), told


async def cancel_one_of_three(engine: Engine, asked: Asked) -> tuple[int, int, list[Generation]]:
    """Requests in flight while three run and after the second was cancelled; the answers of the others."""
    running = [
        asyncio.create_task(engine.generate(_request(engine, {**asked, "seed": seed}, seed))) for seed in (0, 1, 2)
    ]
    await asyncio.sleep(0.02)
    during = engine.in_flight
    running[1].cancel()
    await asyncio.wait([running[1]])
    answers = [await running[0], await running[2]]
    return during, engine.in_flight, answers


async def close_while_generating(engine: Engine, asked: list[Asked]) -> tuple[list[str], str]:
    """What running requests and a later one raise when the engine is closed."""
    running = [asyncio.create_task(refusal(engine, one)) for one in asked]
    await asyncio.sleep(0.02)
    await engine.close()
    return [await one for one in running], await refusal(engine, asked[0])


async def load_refusal_while_generating(
    engine: Engine, asked: list[Asked], weight_version: int, path: Path
) -> tuple[str, list[str], str]:
    """The error of a version that can't be loaded, and what running requests and a later one raise then."""
    running = [asyncio.create_task(refusal(engine, one)) for one in asked]
    await asyncio.sleep(0.02)
    problem = await load_refusal(engine, weight_version, path)
    return problem, [await one for one in running], await refusal(engine, asked[0])


async def kill_children_while_generating(engine: Engine, asked: Asked) -> list[str]:
    """What a running request and a later one raise when the engine's process is killed."""
    running = asyncio.create_task(refusal(engine, asked))
    await asyncio.sleep(0.02)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    return [await running, await refusal(engine, asked)]


async def temporary_directory(_engine: Engine) -> Path:
    """Where the engine's process makes its temporary files."""
    return Path(tempfile.gettempdir())


async def identity(engine: Engine) -> dict[str, Any]:
    """What the engine says about itself, and a prompt that was tokenized and detokenized."""
    token_ids = engine.tokenize([Message(role="user", content="52910=")], ())
    return {
        "name": engine.name,
        "version": engine.version,
        "max_model_len": engine.max_model_len,
        "tokenizer_sha256": engine.tokenizer_sha256,
        "chat_template_sha256": engine.chat_template_sha256,
        "prompt": engine.detokenize(token_ids),
        "num_prompt_tokens": len(token_ids),
        "texts": engine.detokenize(np.array([3, 4, 1], dtype=np.int32)),
    }


async def vllm_configuration(engine: Any) -> dict[str, Any]:
    """What vLLM was told about GPUs, memory and steps."""
    config = engine._llm.vllm_config
    parallel = config.parallel_config
    return {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "nodes": (parallel.nnodes, parallel.node_rank, parallel.master_addr, parallel.master_port),
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
    }


async def reload_plainly(engine: Any, weight_version: int, path: Path) -> str | None:
    """Reload as vLLM does by itself, without our fix, and label the version; what the check of the head says then."""
    llm = engine._llm
    await llm.pause_generation(mode="keep", clear_cache=False)
    await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
    await engine._label(weight_version)
    await llm.resume_generation()
    problems = await llm.collective_rpc("head_differs", args=(str(path),))
    # One for each process of a model that is divided.
    return None if None in problems else "; ".join(problems)


def _request(engine: Engine, asked: Asked, index: int) -> GenerationRequest:
    """`asked`: seed, max_tokens, content, and the fields of Sampling."""
    sampling = {name: value for name, value in asked.items() if name not in ("seed", "max_tokens", "content")}
    return GenerationRequest(
        request_id=f"request-{index}-{time.monotonic_ns()}",
        prompt_token_ids=engine.tokenize([Message(role="user", content=asked.get("content", QUESTION))], ()),
        sampling=Sampling(**sampling),
        max_tokens=asked.get("max_tokens", 100),
        seed=asked.get("seed"),
    )
