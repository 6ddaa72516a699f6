"""A small real stage for tests of the stage loop: a prompt's metadata say what its handler does."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rollstream.bus.consumer import GroupConsumer
from rollstream.bus.group_config import ConsumerSettings
from rollstream.bus.publisher import Publisher
from rollstream.process.entry import run_process
from rollstream.process.health import Health
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.stop import Stop
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_ROLLOUTS, PROMPTS, ROLLOUTS
from rollstream.stage.loop import Route, Stage, run_stage
from rollstream.stage.starts import PoisonGuard
from tests.harness.builders import a_generated
from tests.harness.running import run_on

Handler = Callable[[PromptSubmitted], AsyncGenerator[RolloutGenerated, None]]
IN_FLIGHT = 8


async def obey(prompt: PromptSubmitted) -> AsyncGenerator[RolloutGenerated, None]:
    """Yield a sample, do what metadata says, yield the other samples."""
    yield a_generated(0, prompt=prompt)
    match prompt.metadata.get("order", "").split():
        case ["sleep", seconds]:
            await asyncio.sleep(float(seconds))
        case ["raise"]:
            raise RuntimeError("as ordered")
        case ["hang"]:
            time.sleep(3600)
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
    for index in range(1, prompt.group_size):
        yield a_generated(index, prompt=prompt)


def build_stage(
    kafka: KafkaSettings,
    run: str,
    handle: Handler = obey,
    *,
    redis_url: str | None = None,
    registry_url: str | None = None,
    bounds: dict[str, Any] | None = None,
    **route: Any,
) -> Stage:
    """A stage of the run's generators group over `prompts` and `eval-prompts`."""
    health = Health()
    routes = [
        Route(source=source, handle=lambda prompt, _: handle(prompt), output=output, **route)
        for source, output in ((PROMPTS, ROLLOUTS), (EVAL_PROMPTS, EVAL_ROLLOUTS))
    ]
    settings = ConsumerSettings(
        **{"max_in_flight": IN_FLIGHT, "commit_interval_seconds": 0.2, "revoke_drain_seconds": 2.0, **(bounds or {})}
    )
    group = f"{run}.generators"
    topics = [route.source.of(run) for route in routes]
    return Stage(
        run=run_on(kafka, run, registry_url=registry_url),
        consumer=GroupConsumer(kafka, group_id=group, topics=topics, settings=settings, health=health),
        publisher=Publisher(kafka, client_id=group),
        routes=routes,
        poison=PoisonGuard(redis_url, group),
        health=health,
        drain_seconds=2.0,
    )


async def run_built(stage: Stage, stop: Stop) -> None:
    """Run a stage and close what it was built of."""
    try:
        await run_stage(stage, stop)
    finally:
        stage.publisher.close()


def main(kafka: KafkaSettings, run: str, redis_url: str | None, bounds: dict[str, Any]) -> None:
    """The process."""

    async def run_it(stop: Stop) -> None:
        await run_built(build_stage(kafka, run, redis_url=redis_url, bounds=bounds), stop)

    run_process("echo", run_it)
