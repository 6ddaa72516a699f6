"""What an agent did, as samples: its own tokens train, those of prompts, tools and users do not.

The ids are the engine's, token for token; nothing is tokenized again. `AgentRollouts` is a `generate_fn`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import count
from typing import Any, Final

import numpy as np

from rollstream.agents.samples import SampleRunner
from rollstream.environments.pool.pool import ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.rows.conversation import CARRIED, messages_of, metadata_of, reference_of, tools_in, tools_of
from rollstream.schemas.errors import BadMessageError, ConfigurationError, EngineError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.training.learning.bounds import ANY_MODEL
from rollstream.training.learning.samples import TrainedTokens, TrainingSample, training_samples
from rollstream.training.learning.turns import chains
from rollstream.training.types import Prompt, Sample, SampleStatus

_RUN: Final = "training"
_ALL: Final = TrainedTokens(truncated=True)


def samples_of(rollout: RolloutGenerated, reward: float | None = None, prompt: Prompt | None = None) -> list[Sample]:
    """The samples of a completed rollout, one for each chain of turns of which each extends all of the one before.

    Mask 1 on every sampled token, 0 on all that the model was given. `prompt`: as the data has it; by default the
    rollout's messages. `metadata`: rollout_id, the oldest weight_version that sampled, and temperature and max_tokens
    of the sampling, which `prepare_grpo_batch` reads. Raises `BadMessageError` for a rollout that is not completed, or
    whose server gave text without tokens.
    """
    own = [turn for turn in rollout.turns if not turn.model]
    if rollout.status is not Status.COMPLETED or not all(len(turn.token_ids) for turn in own):
        raise BadMessageError(
            f"rollout {rollout.rollout_id} is {rollout.status.value}, or has turns without tokens: only what an engine "
            "sampled as tokens trains; for a server set http.tokenizer_path"
        )
    # The sample's own reward may come later; none of the numbers here trains.
    found = training_samples(rollout, 0.0, advantage=0.0, lag=0, bounds=ANY_MODEL, trained=_ALL)
    asked = prompt or [message.model_dump(exclude_defaults=True) for message in rollout.prompt.messages]
    return [
        _sample(rollout, one, rollout.turns[chain[-1]].text, asked, reward)
        for chain, one in zip(chains(rollout), found, strict=True)
    ]


def _sample(
    rollout: RolloutGenerated, one: TrainingSample, response: str, prompt: Prompt, reward: float | None
) -> Sample:
    num_given = len(one.prompt_token_ids)
    return Sample(
        prompt=prompt,
        response=response,
        tokens=np.concatenate([one.prompt_token_ids, one.token_ids]).tolist(),
        loss_mask=[0.0] * num_given + one.loss_mask.astype(float).tolist(),
        rollout_log_probs=[0.0] * num_given + one.behavior_logprobs.tolist(),
        reward=reward,
        metadata={
            "rollout_id": rollout.rollout_id,
            "weight_version": min(rollout.weight_versions),
            "temperature": one.temperature,
            "max_tokens": one.max_tokens,
        },
        status=SampleStatus.TRUNCATED if rollout.is_truncated else SampleStatus.COMPLETED,
    )


@dataclass(eq=False)
class AgentRollouts:
    """A `generate_fn`: an agent answers each prompt on an engine, and an environment's rubric scores the answer.

    A prompt is a text, messages, or a row (`rows/README.md` says which columns are read). Without a `pool` samples
    have no reward; with one, their metadata have its `components`. With a seed in `sampling` each sample has the next.
    """

    runner: SampleRunner
    _: KW_ONLY
    sampling: Sampling
    agent: AgentChoice = field(default_factory=AgentChoice)
    environment: str = ""
    pool: ScoringPool | None = None

    def __post_init__(self) -> None:
        self._numbers = count()
        self._scores = None if self.pool is None else _Scores(self.pool)

    async def __call__(self, prompts: Sequence[Prompt]) -> list[Sample]:
        """One sample for each prompt, in their order.

        Raises `ConfigurationError` for a task that can't be asked, or an agent whose turns branch into several
        samples, and `EngineError` for an answer or a reward that did not come; it may come when asked again.
        """
        return await asyncio.gather(*map(self._answered, prompts))

    async def _answered(self, prompt: Prompt) -> Sample:
        rollout = await self.runner.run(self._submitted(prompt), 0)
        if rollout.status is not Status.COMPLETED:
            kind = ConfigurationError if rollout.status is Status.FAILED else EngineError
            raise kind(f"{str(prompt)[:200]!r} is {rollout.status.value}: {rollout.failure}")
        verdict = None if self._scores is None else await self._scores.verdict(ScoringSample.of(rollout))
        if verdict is not None and verdict.reward is None:
            raise EngineError(f"no reward: {verdict.failure}")
        found = samples_of(rollout, None if verdict is None else verdict.reward, prompt)
        if len(found) != 1:
            raise ConfigurationError(
                f"the turns of agent {self.agent.name!r} branched into {len(found)} samples of one prompt, a batch of "
                "rollouts has one: take an agent whose turns extend each other, or the online trainer"
            )
        components = {} if verdict is None else {"components": dict(verdict.components)}
        return replace(found[0], metadata={**found[0].metadata, **components})

    def _submitted(self, prompt: Prompt) -> PromptSubmitted:
        row: dict[str, Any] = prompt if isinstance(prompt, dict) else {"prompt": prompt}
        number = next(self._numbers)
        sampling = self.sampling
        if sampling.seed is not None:
            sampling = sampling.model_copy(update={"seed": sampling.seed + number})
        return PromptSubmitted(
            prompt_id=f"{_RUN}/{number}",
            group_id=group_id(_RUN, f"{_RUN}/{number}", 0),
            purpose=Purpose.TRAIN,
            environment=self.environment,
            messages=messages_of(row),
            tools=tools_of(tools_in(row)),
            reference_answer=reference_of(row),
            sampling=sampling,
            agent=self.agent,
            metadata=metadata_of(row, CARRIED.__contains__),
            submitted_at=utc_now(),
        )


class _Scores:
    """Scores samples that come one by one, in batches: a pool scores one batch at a time, with all its processes."""

    def __init__(self, pool: ScoringPool) -> None:
        self._pool = pool
        self._one_batch = asyncio.Lock()
        self._waiting: list[tuple[ScoringSample, asyncio.Future[Verdict]]] = []

    async def verdict(self, sample: ScoringSample) -> Verdict:
        """The verdict on this sample. Raises what the pool raises."""
        found: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((sample, found))
        while not found.done():
            async with self._one_batch:
                if not found.done():
                    await self._score_all_that_wait()
        return found.result()

    async def _score_all_that_wait(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            for (_, found), verdict in zip(batch, await self._pool.score([one for one, _ in batch]), strict=True):
                if verdict is not None:
                    found.set_result(verdict)
        finally:
            # Those whose turn did not come, and all of a batch that was broken off.
            self._waiting = [one for one in batch if not one[1].done()] + self._waiting
