"""Fills a run's topics as after many optimizer steps, with weights and a checkpoint of the last one."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from rollstream.bus.message import Delivery, OutRecord
from rollstream.bus.run import Run
from rollstream.history.known import read_known
from rollstream.history.weight_files import StoredWeights
from rollstream.history.weight_store import open_weight_store
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.build import build_source
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, TrainedRollout
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER, PRODUCERS, PROMPTS, SCORED, WEIGHTS
from rollstream.schemas.weights import WeightsPublished
from rollstream.trainer.commits.checkpoint import Position, as_next_offsets, write_checkpoint
from rollstream.trainer.commits.commit import new_incarnation
from rollstream.trainer.settings import TrainerSettings
from tests.bench.synthetic_rollouts import synthetic_prompts

if TYPE_CHECKING:
    from rollstream.training.learning.learner import Learner

_INCARNATION: Final = "bench"
_METRICS: Final = 40
_DELIVERY_SECONDS: Final = 300.0
_AT_ONCE: Final = 64
"""Records that may share a batch. A client unpacks a batch as a whole, and those of a trainer are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryShape:
    """How many optimizer steps, and the size of each."""

    steps: int
    groups_per_step: int
    group_size: int
    producer: str = "producer"

    def of_steps(self, steps: int) -> Self:
        """The same with other steps."""
        return replace(self, steps=steps)


def write_history(config: Path, shape: HistoryShape) -> None:
    """Make the run's topics and fill them: a first restart, then `shape.steps` steps; the last names a checkpoint."""
    settings = TrainerSettings.load(config)
    run = Run(settings)
    run.admin().create_topics(run.name, partitions=4)
    learner = _learner(settings)
    # Each version has the files of one: what a start costs does not depend on them.
    stored = open_weight_store(settings.weight_store).write(f"0-{_INCARNATION}", learner.save_weights)
    prompts = _prompts(run.name, shape)
    _publish(run, (run.out_record(PROMPTS, prompt) for prompt in prompts))
    _publish(run, _records(run, shape, stored, range(shape.steps)))
    checkpoint = _checkpoint(settings, run, shape, learner)
    _publish(run, iter([run.out_record(PRODUCERS, _progress(config, run, shape))]))
    _publish(run, _records(run, shape, stored, range(shape.steps, shape.steps + 1), checkpoint))


def _learner(settings: TrainerSettings) -> "Learner":
    # Imports torch.
    from rollstream.training.learning.learner import Learner

    return Learner.from_model(settings.model_path, settings.learning)


def _prompts(run: str, shape: HistoryShape) -> Iterator[PromptSubmitted]:
    count = shape.steps * shape.groups_per_step
    made = synthetic_prompts(run, count, group_size=shape.group_size, max_tokens=12)
    for sequence, prompt in enumerate(made):
        yield prompt.model_copy(update={"producer": shape.producer, "sequence": sequence})


def _checkpoint(settings: TrainerSettings, run: Run, shape: HistoryShape, learner: "Learner") -> str:
    """The uri of a checkpoint as a trainer writes it before its last step is on the ledger."""
    ledger_topic_id = run.admin().identity([run.topic(LEDGER)]).topic_ids[run.topic(LEDGER)]
    history = read_known(run, ledger_topic_id, None).snapshot()
    name = f"{shape.steps}-{new_incarnation(ledger_topic_id)}"
    return write_checkpoint(
        open_weight_store(settings.checkpoints), name, _position(run, shape), history, learner.save_state
    )


def _progress(config: Path, run: Run, shape: HistoryShape) -> ProducerProgress:
    """What the producer has left before the last step: all of its groups are closed but those of that step."""
    now = utc_now()
    num_prompts = shape.steps * shape.groups_per_step
    last = islice(_prompts(run.name, shape), num_prompts - shape.groups_per_step, None)
    (ledger_end,) = run.ends(LEDGER).values()
    return ProducerProgress(
        producer=shape.producer,
        incarnation=1,
        source=build_source(ProducerSettings.load(config)).dataset,
        claimed_at=now,
        mark=str(num_prompts),
        next_sequence=num_prompts,
        open_groups=tuple(prompt.group_id for prompt in last),
        ledger_offset=ledger_end,
        prompts_offsets={str(number): end for (_, number), end in run.ends(PROMPTS).items()},
        written_at=now,
    )


def _position(run: Run, shape: HistoryShape) -> Position:
    identity = run.admin().identity([run.topic(PROMPTS), run.topic(SCORED)])
    return Position(
        run=run.name,
        weight_version=shape.steps,
        step=shape.steps,
        cluster_id=identity.cluster_id,
        topic_ids=identity.topic_ids,
        next_offsets=as_next_offsets({**run.ends(PROMPTS), **run.ends(SCORED)}),
        open_groups=(),
    )


def _records(
    run: Run, shape: HistoryShape, stored: StoredWeights, versions: range, checkpoint: str | None = None
) -> Iterator[OutRecord]:
    """What a trainer's transactions put on `weights` and `ledger`, in their order."""
    random = np.random.default_rng(0)
    earlier = shape.groups_per_step * max(0, versions.start - 1)
    groups = islice((prompt.group_id for prompt in _prompts(run.name, shape)), earlier, None)
    for version in versions:
        parent = version - 1 if version else None
        weights = WeightsPublished(
            model=run.model, weight_version=version, parent_version=parent, uri=stored.uri, files=stored.files,
            step=version, created_at=utc_now(),
        )  # fmt: skip
        yield run.out_record(WEIGHTS, weights)
        of_step = [next(groups) for _ in range(shape.groups_per_step)] if version else []
        metrics = {f"metric_{number}": value for number, value in enumerate(random.random(_METRICS).tolist())}
        entry = LedgerEntry(
            kind=EntryKind.STEP if version else EntryKind.RESTART,
            incarnation=_INCARNATION,
            step=version,
            weight_version=version,
            parent_version=parent,
            checkpoint=checkpoint,
            trained=tuple(_trained(of_step, shape)),
            closed=tuple(ClosedGroup(group_id=group, outcome=GroupOutcome.TRAINED) for group in of_step),
            metrics=metrics if version else {},
            started_at=utc_now(),
            finished_at=utc_now(),
        )
        yield run.out_record(LEDGER, entry)


def _trained(groups: list[str], shape: HistoryShape) -> Iterator[TrainedRollout]:
    for group in groups:
        for index in range(shape.group_size):
            yield TrainedRollout(
                rollout_id=rollout_id(group, index), attempt_id=new_attempt_id(), partition=0, offset=index
            )


def _publish(run: Run, records: Iterator[OutRecord]) -> None:
    publisher = run.publisher("bench")
    last: Future[Delivery] | None = None
    for number, record in enumerate(records, start=1):
        last = publisher.publish_soon(record)
        if number % _AT_ONCE == 0:
            last.result(_DELIVERY_SECONDS)
    if last is not None:
        last.result(_DELIVERY_SECONDS)
    publisher.close(_DELIVERY_SECONDS)
