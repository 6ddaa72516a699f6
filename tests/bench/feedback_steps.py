"""Steps of the trainer on answers whose only reward is what callers say of them, in this process and without Kafka.

Engine, records, admission, intake, advantages and optimizer are those of the stages; the way between them is a call.
With group_size 1 an answer is a group of one, as the feedback producer publishes it. With more, each prompt is answered
so often, and callers judge every answer of it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.settings import EngineSettings
from rollstream.engines.transformers_engine import TransformersEngine
from rollstream.environments.protocol import Split, Task
from rollstream.environments.sort_digits import SortDigits
from rollstream.schemas.prompt import Sampling
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules, Admitted
from rollstream.trainer.intake.aging import Aging
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import LogPlace
from rollstream.trainer.intake.intake import Intake
from rollstream.training.learning.settings import LearningSettings
from tests.bench.callers import Callers, is_right
from tests.harness.builders import a_prompt, a_rollout, a_scoring, a_served, a_turn
from tests.harness.late import Late

_learner = Late("rollstream.training.learning.learner")
_reference = Late("rollstream.training.learning.reference")
_steps = Late("rollstream.training.learning.train_step")

NUM_HELD_OUT: Final = 512
_MAX_TOKENS: Final = 12
_ASKED_AT_ONCE: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What is compared with what. `num_answers`: of a step, all judged."""

    learning: LearningSettings
    group_size: int = 1
    num_steps: int = 200
    num_answers: int = 256
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Shares of right answers to the held-out prompts, greedily; how groups closed; and how many answers were asked."""

    before: float
    after: float
    num_asked: int
    closed: Counter[str]


class FeedbackSteps:
    """A policy that callers ask and judge."""

    def __init__(self, arm: Arm, engine: TransformersEngine, model: Path, directory: Path) -> None:
        self._arm, self._engine, self._directory = arm, engine, directory
        self._learner = _learner.Learner.from_model(model, arm.learning)
        # With larger groups the judged answers are all of them: else they would not be larger groups.
        self._callers = Callers(random.Random(arm.seed), judged_ratio=0.3 if arm.group_size == 1 else 1.0)
        self._tasks = SortDigits().tasks("train", arm.seed)
        self._intake = Intake(
            Assembler(closed=(), offsets={}, incomplete_bytes=2**30), Aging(60.0),
            # Answers that were cut off train too: else nothing keeps the policy from answers without an end.
            AdmissionRules(max_policy_lag=1, advantages=arm.learning, train_truncated=True),
            expired_before={}, ones_per_group=8,
        )  # fmt: skip
        self._version = self._num_asked = 0
        self._closed: Counter[str] = Counter()

    async def run(self) -> Found:
        """All steps."""
        before = await self._held_out()
        for step in range(1, self._arm.num_steps + 1):
            await self._step(step)
        return Found(before=before, after=await self._held_out(), num_asked=self._num_asked, closed=self._closed)

    async def _step(self, step: int) -> None:
        batch = await self._batch()
        samples = [sample for admitted in batch for sample in admitted.training]
        _steps.train_step(self._learner, _reference.prepared(self._learner, samples), step=step)
        self._intake.assembler.close_trained(admitted.group.group_id for admitted in batch)
        self._closed["trained"] += len(batch)
        self._version = step
        self._learner.save_weights(self._directory)
        await self._engine.load_weights(step, self._directory)

    async def _batch(self) -> Sequence[Admitted]:
        while True:
            num_groups = self._arm.num_answers // (8 if self._arm.group_size == 1 else self._arm.group_size)
            batch = self._intake.batch(num_groups, self._lag)
            self._closed.update(drop.reason.value for drop in self._intake.assembler.take_drops(2**20))
            if batch is not None:
                return batch
            await self._ask()
            self._intake.settle(self._lag)

    async def _ask(self) -> None:
        """Have some prompts answered, and take in what callers say.

        Whether a caller will judge does not depend on the answer. Without a judgment it changes nothing, so it is not
        even made.
        """
        tasks = list(islice(self._tasks, _ASKED_AT_ONCE // self._arm.group_size))
        asked = [task for task in tasks if self._callers.judges() for _ in range(self._arm.group_size)]
        answers = await answered(self._engine, asked, temperature=1.0, first_seed=self._num_asked)
        for place, (task, answer) in enumerate(zip(asked, answers, strict=True)):
            thumb = self._callers.thumb(task, answer.text)
            scored = self._scored(task, answer, thumb, place % self._arm.group_size)
            self._intake.assembler.add_sample(scored, LogPlace(("scored", 0), self._num_asked + place), 1)
        self._num_asked += _ASKED_AT_ONCE

    def _scored(self, task: Task, answer: Generation, thumb: float, index: int) -> RolloutScored:
        prompt = a_prompt(
            prompt_id=f"serve/{task.task_id}", messages=task.messages, reference_answer=None,
            group_size=self._arm.group_size, sampling=Sampling(temperature=1.0, max_tokens=_MAX_TOKENS),
        )  # fmt: skip
        turn = a_turn(
            answer.token_ids.tolist(), prompt_token_ids=self._engine.tokenize(task.messages, ()), text=answer.text,
            behavior_logprobs=answer.behavior_logprobs, finish_reason=answer.finish_reason,
            spans=[(span.weight_version, span.start, span.end) for span in answer.weight_spans],
        )  # fmt: skip
        scoring = a_scoring(thumb, components={"feedback/thumbs": thumb})
        served = a_served(f"chatcmpl-{task.task_id}") if self._arm.group_size == 1 else None
        return a_rollout(thumb, index, prompt=prompt, turns=(turn,), scoring=scoring, served=served)

    def _lag(self, version: int) -> int:
        return self._version - version

    async def _held_out(self) -> float:
        return await right_ratio(self._engine, "evaluate", self._arm.seed)


async def answered(
    engine: TransformersEngine, tasks: Sequence[Task], *, temperature: float, first_seed: int = 0
) -> list[Generation]:
    """The engine's answers, in the order of the tasks."""
    sampling = Sampling(temperature=temperature, max_tokens=_MAX_TOKENS)
    requests = (
        GenerationRequest(
            request_id=f"{first_seed + number}", prompt_token_ids=engine.tokenize(task.messages, ()),
            sampling=sampling, max_tokens=_MAX_TOKENS, seed=first_seed + number,
        )
        for number, task in enumerate(tasks)
    )  # fmt: skip
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


async def right_ratio(engine: TransformersEngine, split: Split, seed: int) -> float:
    """Right ones among the greedy answers to NUM_HELD_OUT prompts."""
    tasks = list(islice(SortDigits().tasks(split, seed), NUM_HELD_OUT))
    answers = await answered(engine, tasks, temperature=0.0)
    return sum(is_right(task, answer.text) for task, answer in zip(tasks, answers, strict=True)) / len(tasks)


def run_arm(arm: Arm, model: Path, directory: Path) -> Found:
    """Run one arm from the model in `model`; its newest weights go to `directory`."""

    async def run() -> Found:
        async with _an_engine(model) as engine:
            return await FeedbackSteps(arm, engine, model, directory).run()

    return asyncio.run(run())


def right_ratio_of(model: Path, seed: int) -> float:
    """Right ones among the greedy answers of the model in this directory to the held-out prompts of this seed."""

    async def run() -> float:
        async with _an_engine(model) as engine:
            return await right_ratio(engine, "evaluate", seed)

    return asyncio.run(run())


@asynccontextmanager
async def _an_engine(model: Path) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(
        EngineSettings(kind="transformers", model_path=model, max_model_len=32, max_num_seqs=_ASKED_AT_ONCE)
    )
    await engine.start(0)
    try:
        yield engine
    finally:
        await engine.close()
