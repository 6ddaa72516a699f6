"""One group of the actor: the samples of one problem, asked, scored, and made into the texts that are published."""

import asyncio
from dataclasses import dataclass, field

from rollstream.agents.problem_state import CycleOptions
from rollstream.agents.samples import SampleRunner
from rollstream.environments.pool.pool import ScoringPool
from rollstream.environments.pool.verdicts import ScoringSample, Verdict
from rollstream.environments.rewards.table import rewarded
from rollstream.environments.rubric import RewardTurn
from rollstream.rc_actor.journal import ActorJournal
from rollstream.rc_actor.policies import policy_reward
from rollstream.rc_actor.settings import RCSettings
from rollstream.rc_actor.texts import texts_of
from rollstream.rc_actor.training_text import TrainingText
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.scored import Scoring


@dataclass(eq=False, slots=True)
class ProblemGroup:
    """A problem in hand. `rollouts`: its samples that are complete, and the newest attempts at the others."""

    row: int
    prompt: PromptSubmitted
    num_requeued: int = 0
    rollouts: dict[int, RolloutGenerated] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        """Samples that are not complete."""
        done = {index for index, rollout in self.rollouts.items() if rollout.status is Status.COMPLETED}
        return [index for index in range(self.prompt.group_size) if index not in done]


@dataclass(frozen=True, slots=True)
class GroupWork:
    """What all groups have in common. `in_flight` bounds the samples that run side by side.

    `options`: those of the settings, read once, since a template may lie in a file.
    """

    settings: RCSettings
    options: CycleOptions
    runner: SampleRunner
    journal: ActorJournal
    pool: ScoringPool
    in_flight: asyncio.Semaphore

    async def ask(self, group: ProblemGroup) -> None:
        """Ask the samples that are missing, each once; finished steps are not asked again.

        Raises the error of the world, such as `EngineDeadError`, and cancels the other samples then.
        """
        try:
            async with asyncio.TaskGroup() as samples:
                for index in group.missing:
                    samples.create_task(self._sample(group, index))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def texts(self, group: ProblemGroup) -> list[TrainingText]:
        """The texts of a complete group, in the order of its samples and turns."""
        rollouts = [group.rollouts[index] for index in range(group.prompt.group_size)]
        scorings = await self._scored(rollouts)
        return [
            text
            for rollout, scoring in zip(rollouts, scorings, strict=True)
            for text in texts_of(rollout, scoring, self.options, attempts=self.settings.attempts)
        ]

    async def _sample(self, group: ProblemGroup, index: int) -> None:
        async with self.in_flight:
            journal = self.journal.sample(group.prompt.group_id, index)
            group.rollouts[index] = await self.runner.run(group.prompt, index, None, journal)

    async def _scored(self, rollouts: list[RolloutGenerated]) -> list[Scoring]:
        verdicts: dict[int, Verdict] = {}
        while waiting := [number for number in range(len(rollouts)) if number not in verdicts]:
            given = await self.pool.score([ScoringSample.of(rollouts[number]) for number in waiting])
            verdicts |= {number: one for number, one in zip(waiting, given, strict=True) if one is not None}
        return [self._scoring(rollouts[number], verdicts[number]) for number in range(len(rollouts))]

    def _scoring(self, rollout: RolloutGenerated, verdict: Verdict) -> Scoring:
        """The verdict with the rewards of the table instead of the environment's scores."""
        settings = self.settings

        def reward(score: float | None, number: int) -> float | None:
            if (given := policy_reward(rollout, number)) is not None:
                return given
            # Its scoring failed: it has no reward, and not that of a wrong answer.
            if score is None:
                return None
            turn = RewardTurn.of(rollout.turns[number], rollout.prompt.sampling.max_tokens)
            return rewarded(score, turn, settings.rewards, settings.actor.discount_factor)

        scores = [one.model_copy(update={"reward": reward(one.reward, one.turn)}) for one in verdict.turn_scores]
        last = next((number for number, turn in enumerate(rollout.turns) if turn is rollout.answer), None)
        return Scoring(
            scorer="rc_actor",
            scorer_version="",
            reward=None if last is None else reward(verdict.reward, last),
            components=verdict.components,
            status=verdict.status,
            failure=verdict.failure,
            turn_scores=tuple(scores),
            scored_at=utc_now(),
        )
