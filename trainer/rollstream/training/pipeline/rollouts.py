"""What answers the prompts of RL: the engine, the agent on it, and the processes that score."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner, identity_of
from rollstream.engines.build import build_engine
from rollstream.engines.protocol import Engine
from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.environments.protocol import Environment
from rollstream.schemas.prompt import AgentChoice
from rollstream.training import filters
from rollstream.training.agent_integration import AgentRollouts
from rollstream.training.pipeline.settings import RlTable, TrainSettings
from rollstream.training.types import RolloutConfig


@asynccontextmanager
async def started_engine(table: RlTable, weights: Path, version: int) -> AsyncIterator[Engine]:
    """The engine, started, with these weights under this version."""
    settings = table.engine
    if settings.kind != "openai_http":
        settings = settings.model_copy(update={"model_path": weights})
    engine = build_engine(settings)
    try:
        await engine.start(version)
        if settings.kind == "openai_http":
            # Servers may have been started with others.
            await engine.load_weights(version, weights)
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def agent_rollouts(
    settings: TrainSettings, table: RlTable, environment: Environment, engine: Engine
) -> AsyncIterator[AgentRollouts]:
    """What answers prompts and scores the answers."""
    chosen = table.model_dump(include={"temperature", "max_tokens", "seed"}, exclude_none=True)
    load_seconds = PoolBounds().load_seconds
    bounds = PoolBounds(
        num_processes=table.num_scoring_processes,
        sample_seconds=table.scoring_seconds,
        batch_seconds=load_seconds + 2 * table.scoring_seconds,
        rewards_at_timeout={} if table.reward_at_timeout is None else {table.environment: table.reward_at_timeout},
    )
    async with ScoringPool(bounds, settings.environments) as pool:
        runner = SampleRunner(
            engine,
            identity=identity_of(engine, "train"),
            # A rollout manager asks again by itself.
            bounds=SampleBounds(deadline_seconds=table.sample_seconds, max_tries=1),
            agents=Agents(settings.agents),
        )
        yield AgentRollouts(
            runner,
            sampling=environment.sampling.model_copy(update=chosen),
            agent=AgentChoice(name=table.agent, options=table.agent_options),
            environment=table.environment,
            pool=pool,
        )


def rollout_config(table: RlTable, generate: AgentRollouts) -> RolloutConfig:
    chosen = table.model_dump(
        include={"batch_size", "n_samples_per_prompt", "over_sampling_factor", "max_resampling", "accept_short_batch"}
    )
    keep = [getattr(filters, name) for name in table.filters]
    return RolloutConfig(generate_fn=generate, filter_fn=keep or None, timeout=2 * table.sample_seconds, **chosen)
