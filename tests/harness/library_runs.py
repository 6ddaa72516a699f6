"""The demo's task through the training library alone: an engine of this process, an agent, and `run_rl_training`."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.build import build_engine
from rollstream.engines.settings import EngineSettings
from rollstream.environments.sort_digits import SortDigits
from rollstream.local.demo import options as demo
from rollstream.local.tiny_model import VOCABULARY, write_tiny_model
from rollstream.schemas.prompt import Sampling
from rollstream.training.agent_integration import AgentRollouts
from rollstream.training.backends.protocol import Metrics, TrainingBackend
from rollstream.training.backends.pytorch_factory import create_pytorch_backend
from rollstream.training.datasets import DataBuffer
from rollstream.training.learning.settings import AdvantageSettings, LearningSettings
from rollstream.training.loops.rl_loop import run_rl_training
from rollstream.training.rollout_gen import AsyncRolloutManager
from rollstream.training.sft.settings import SftSettings
from rollstream.training.sft.sft import run_sft
from rollstream.training.types import Prompt, RLTrainingConfig, RolloutConfig, Sample
from rollstream.training.weight_sync import InProcessEngine
from tests.harness.builders import a_generator

_MEAN_OVER_STEPS = 5
_BOUNDS = SampleBounds(deadline_seconds=120.0, max_tries=1)


def sorting_prompts(number: int, seed: int = 0) -> list[Prompt]:
    """Rows of the environment `sort_digits`."""
    tasks = islice(SortDigits().tasks("train", seed), number)
    return [{"prompt": task.messages[0].content, "reference_answer": task.reference_answer} for task in tasks]


async def is_sorted(sample: Sample) -> float:
    """1 if the answer is the digits in order, else 0."""
    assert isinstance(sample.prompt, dict)
    return float(sample.response == sample.prompt["reference_answer"])


async def train(
    backend: TrainingBackend,
    engine_settings: EngineSettings,
    loop: RLTrainingConfig,
    *,
    seed: int = 0,
    num_prompts: int = 20_000,
    **rollouts: Any,
) -> tuple[list[Metrics], InProcessEngine]:
    """What each step reports; the weights of the engine are those that the backend began with."""
    engine = build_engine(engine_settings)
    await engine.start(0)
    loaded = InProcessEngine(engine)
    try:
        runner = SampleRunner(engine, identity=a_generator(), bounds=_BOUNDS)
        ask = AgentRollouts(runner, sampling=Sampling(temperature=1.0, max_tokens=12, seed=1_000_000 * seed))
        buffer = DataBuffer(sorting_prompts(num_prompts, seed), seed=seed)
        config = RolloutConfig(**{"generate_fn": ask, "reward_fn": is_sorted, **rollouts})
        scaled = AdvantageSettings(scale_advantages="group")
        manager = AsyncRolloutManager(buffer, config)
        return await run_rl_training(backend, buffer, manager, [loaded], loop, advantages=scaled), loaded
    finally:
        await engine.close()


def demo_rewards(directory: Path, seed: int, num_steps: int) -> tuple[float, float]:
    """Mean reward of the first and of the last steps of the demo's task, after the demo's warm-up."""
    torch.set_num_threads(1)
    model = _warmed_up(directory, seed)
    settings = LearningSettings(loss="dapo", old="behavior", warmup_steps=10, threads=1, seed=seed)
    backend = create_pytorch_backend(model, directory, "cpu", demo.LEARNING_RATE, loss_fn=settings, settings=settings)
    engine = EngineSettings(kind="transformers", model_path=model, device="cpu", max_num_seqs=512)
    loop = RLTrainingConfig(num_steps=num_steps, sync_every=1, checkpoint_every=num_steps)
    sizes = {"batch_size": demo.GROUPS_PER_STEP, "n_samples_per_prompt": demo.GROUP_SIZE}
    with closing(backend):
        metrics, _ = asyncio.run(train(backend, engine, loop, seed=seed, **sizes))
    rewards = [step["reward_mean"] for step in metrics]
    return mean(rewards[:_MEAN_OVER_STEPS]), mean(rewards[-_MEAN_OVER_STEPS:])


def _warmed_up(directory: Path, seed: int) -> Path:
    """The demo's model after its warm-up by SFT."""
    write_tiny_model(directory / "untrained", seed=seed)
    settings = SftSettings(
        model_path=directory / "untrained",
        output=directory / "model",
        environment=demo.ENVIRONMENT,
        until_accuracy=demo.WARM_UP_ACCURACY,
        learning=LearningSettings(loss="nll", learning_rate=1e-3, seed=seed, threads=1),
    )
    run_sft(settings)
    return settings.output


class _Clock:
    """A logger that notes when each step was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def log(self, _metrics: Mapping[str, Any], _step: int) -> None:
        self.times.append(time.perf_counter())

    def finish(self) -> None:
        """Nothing is left to do."""


def tokens_per_second(
    *, groups: int, group_size: int, prompt_tokens: int, tokens: int, steps: tuple[int, int], **model: Any
) -> float:
    """Trained tokens a second of the whole loop, on random answers that are there at once.

    `steps`: those before the clock, and those that it measures.
    """
    shape = groups * group_size, prompt_tokens + tokens
    rows = torch.randint(3, len(VOCABULARY), shape, generator=torch.Generator().manual_seed(0)).tolist()
    mask = [0.0] * prompt_tokens + [1.0] * tokens
    logprobs = [-4.0 * one for one in mask]
    numbers = count()

    def answer(prompt: Prompt) -> Sample:
        number = next(numbers)
        return Sample(
            prompt,
            tokens=rows[number % len(rows)],
            loss_mask=mask,
            reward=number % 2.0,
            rollout_log_probs=logprobs,
        )

    buffer = DataBuffer([f"prompt {number}" for number in range(1000)])
    rollouts = RolloutConfig(
        batch_size=groups, n_samples_per_prompt=group_size, generate_fn=lambda prompts: [answer(one) for one in prompts]
    )
    # The last step is not measured: it writes a checkpoint.
    num_steps, clock = sum(steps) + 1, _Clock()
    loop = RLTrainingConfig(num_steps=num_steps, sync_every=num_steps, checkpoint_every=num_steps, log_every=1)
    with TemporaryDirectory() as name:
        with ThreadPoolExecutor(1) as apart:  # see create_pytorch_backend
            apart.submit(write_tiny_model, Path(name, "model"), seed=0, **model).result()
        settings = LearningSettings(warmup_steps=0)
        backend = create_pytorch_backend(
            Path(name, "model"), Path(name), "cpu", 1e-6, loss_fn="dapo", settings=settings
        )
        with closing(backend):
            asyncio.run(run_rl_training(backend, buffer, AsyncRolloutManager(buffer, rollouts), [], loop, clock))
    seconds = clock.times[-2] - clock.times[steps[0] - 1]
    return groups * group_size * tokens * steps[1] / seconds
