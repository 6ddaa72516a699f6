"""How a trainer starts: load the model, take over the run, restore, commit a first ledger entry; then the loop."""

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollstream.bus.presence import TrainerPresence
from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.engines.model_directory import read_config
from rollstream.history.known import KnownHistory, read_known
from rollstream.history.passing import Passing
from rollstream.history.weight_store import WeightStore, open_weight_store
from rollstream.process.crash_points import crash_point
from rollstream.process.health import Health
from rollstream.process.heap import hide_loaded_objects
from rollstream.process.stop import Stop, ending_within
from rollstream.process.tracing.begin import require_tracing, tracing_of
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.schemas.errors import BrokerError, ExpiredTransactionError, FencedError
from rollstream.schemas.topics import LEDGER, PRODUCERS, PROMPTS, SCORED, WEIGHTS
from rollstream.trainer import metrics
from rollstream.trainer.commits.checkpoint import (
    Position,
    checkpoint_directory,
    newest_history,
    positions,
    read_position,
    state_directory,
)
from rollstream.trainer.commits.commit import Commits, Stores, new_incarnation, run_mark
from rollstream.trainer.commits.restart import (
    ReadingStart,
    RestartPlan,
    check_first_start,
    check_noted,
    check_position,
    check_topics,
    plan_restart,
    reading_start,
    with_margin,
)
from rollstream.trainer.intake.admission import AdmissionRules, narrow_lag_bound
from rollstream.trainer.intake.aging import Aging
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.intake import Intake
from rollstream.trainer.intake.reading import RolloutReader
from rollstream.trainer.intake.upstream import Clock, UpstreamWatcher, export_own_lag
from rollstream.trainer.loop import Trainer
from rollstream.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from rollstream.training.learning.learner import Learner

_LOG = logging.getLogger(__name__)


def run_trainer(settings: TrainerSettings, stop: Stop, clock: Clock = time.monotonic) -> None:
    """Serve health, load the model, take over the run and train; `clock` gives the seconds by which groups age."""
    settings.log_resolved()
    if settings.max_policy_lag == 0:
        _LOG.warning("max_policy_lag 0: what is generated during a step is dropped; 1 or more lets both overlap")
    health = Health()
    health.serve(settings.health_host, settings.health_port)
    try:
        require_tracing(settings.tracing)
        stores = _refuse_what_is_missing(settings)
        if _is_told_to_end(stop):
            return
        # Loading is slow, so it comes before the takeover: until then a trainer before this one goes on training.
        with ending_within(stop):
            learner = _load_learner(settings)
        hide_loaded_objects()
        with tracing_of(settings.tracing, stage="trainer", run=settings.run) as tracing:
            train(settings, stores, learner, stop, health, clock, tracing)
    finally:
        health.close()


def _refuse_what_is_missing(settings: TrainerSettings) -> Stores:
    """What can be said before torch is imported, which takes long. Gives the stores, which know what they may do."""
    read_config(settings.model_path)
    if settings.learning.reference_path is not None:
        read_config(settings.learning.reference_path, "learning.reference_path")
    weights, checkpoints = (
        open_weight_store(location, settings.storage) for location in (settings.weight_store, settings.checkpoints)
    )
    for store in (weights, checkpoints):
        store.probe(writes=True)
    run = Run(settings)
    run.require_topics(WEIGHTS, LEDGER)
    run.sibling(settings.rollouts_run).require_topics(PROMPTS, SCORED)
    return Stores(weights=weights, checkpoints=checkpoints)


def train(
    settings: TrainerSettings,
    stores: Stores,
    learner: "Learner",
    stop: Stop,
    health: Health,
    clock: Clock = time.monotonic,
    tracing: Tracing = OFF,
) -> None:
    """Take over the run with a loaded learner, and train; raises `FencedError` once another trainer took over.

    `stop` is looked at between the phases of the start: a trainer that is told to end writes nothing any more.
    """
    run = Run(settings)
    crash_point("model_loaded")
    if _is_told_to_end(stop):
        return
    publisher = TransactionalPublisher(run.kafka, run.group("trainer"))
    with ending_within(stop):
        # Before the ledger is read: from here on nobody else can append, a predecessor's open transaction is aborted.
        publisher.init()
        crash_point("taken_over")
        found = _look_up(settings, run, stores.checkpoints)
        if 0 < settings.num_steps <= found.plan.step:
            _LOG.info("step %d of %d is there already, nothing is left to do", found.plan.step, settings.num_steps)
            return
        if found.checkpoint is not None and not stop.is_asked:
            learner.load_state(state_directory(found.checkpoint))
            stores.checkpoints.confirm()
    if _is_told_to_end(stop):
        return
    metrics.begin(found.known.milestones)
    commits = _commits(settings, run, publisher, stores, found)
    _restart(found.plan, learner, commits)
    with ExitStack() as stack:
        stack.enter_context(_fenced_if_taken_over(run, commits, found.known))
        stack.enter_context(TrainerPresence(settings.kafka, settings.run))
        upstream = UpstreamWatcher(run.sibling(settings.rollouts_run), clock)
        stack.callback(upstream.close)
        reader = stack.enter_context(closing(RolloutReader(settings, found.start.offsets)))
        # Minutes may have passed: from here on the reader itself looks.
        check_topics(found.restored, reader.topic_ids)
        source = run.sibling(settings.rollouts_run)
        export_own_lag(run.group("trainer"), source, lambda: upstream.latest, lambda: reader.committed)
        trainer = Trainer(
            settings=settings, learner=learner, commits=commits, intake=_intake(settings, learner, found),
            reader=reader, upstream=upstream, versions=found.known.fold.versions, restored=found.restored,
            health=health, clock=clock, tracing=tracing,
        )  # fmt: skip
        trainer.run(stop)


def _is_told_to_end(stop: Stop) -> bool:
    if stop.is_asked:
        _LOG.info("told to end before the first ledger entry: nothing is written")
    return stop.is_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The run as the trainers before this one left it.

    `known`: its history. `plan`, `checkpoint` and `restored`: what to restore. `start`: where to read on. `expected`:
    after an accepted loss, the groups that may be open without a prompt to read. `remember_seconds`: how long a record
    of `prompts` or `scored` may come after its group closed; None: for ever.
    """

    known: KnownHistory
    plan: RestartPlan
    checkpoint: Path | None
    restored: Position
    start: ReadingStart
    expected: tuple[str, ...]
    remember_seconds: float | None


def _look_up(settings: TrainerSettings, run: Run, checkpoints: WeightStore) -> _Found:
    """Read what the trainers before this one left; nobody may append to the ledger any more."""
    ledger_topic_id = run.admin().identity([run.topic(LEDGER)]).topic_ids[run.topic(LEDGER)]
    snapshot = newest_history(checkpoints, run_mark(ledger_topic_id), ledger_topic_id)
    known = read_known(run, ledger_topic_id, snapshot)
    if said := narrow_lag_bound(known.step_times, settings.max_policy_lag):
        _LOG.warning(said)
    plan = plan_restart(known.fold, known.newest_version)
    source = run.sibling(settings.rollouts_run)
    checkpoint = None if plan.checkpoint is None else checkpoint_directory(checkpoints, plan.checkpoint)
    restored = _restored_position(run, source, plan, checkpoint)
    if plan.parent is None:
        check_first_start(
            positions(checkpoints), _noted(run, source),
            run=run.name, topic_ids=restored.topic_ids, newest_version=known.newest_version,
        )  # fmt: skip
    elif not any(run.ends(WEIGHTS).values()):
        _LOG.warning(
            "no version lies on weights of run %s, and its ledger has them up to %d: the topic was deleted and made "
            "again. Training goes on, but where older versions lie is lost: none of them can be rolled back to",
            run.name, known.newest_version,
        )  # fmt: skip
    bounds = {**source.bounds(PROMPTS), **source.bounds(SCORED)}
    start = reading_start(restored.offsets(), bounds, accept_loss=settings.accept_loss)
    expected: tuple[str, ...] = ()
    if start.expired_before:
        # Of the groups that producers name, some may have closed long ago: so here the whole ledger is remembered.
        known = read_known(run, ledger_topic_id, None)
        expected = (*restored.open_groups, *_groups_of_producers(source))
    return _Found(
        known=known, plan=plan, checkpoint=checkpoint, restored=restored, start=start, expected=expected,
        remember_seconds=_remember_seconds(source),
    )  # fmt: skip


def _groups_of_producers(source: Run) -> list[str]:
    """Groups that were open when their producers last wrote; no trainer may have read their prompts."""
    newest = {progress.producer: progress for progress in source.read(PRODUCERS)}
    return [group for progress in newest.values() for group in (*progress.open_groups, *progress.recently_closed)]


def _restart(plan: RestartPlan, learner: "Learner", commits: Commits) -> None:
    """Publish the restored weights as a new version: the first ledger entry."""
    entry = commits.restart(
        version=plan.version, parent=plan.parent, step=plan.step, save_weights=learner.save_weights,
        non_finite=plan.non_finite,
    )  # fmt: skip
    metrics.export(entry)
    _LOG.info("goes on at step %d", plan.step, extra={"weight_version": entry.weight_version})


def _intake(settings: TrainerSettings, learner: "Learner", found: _Found) -> Intake:
    start, fold = found.start, found.known.fold
    assembler = Assembler(
        closed=fold.closed, is_forgotten=fold.is_forgotten, offsets=start.offsets,
        incomplete_bytes=settings.incomplete_bytes,
    )  # fmt: skip
    assembler.expect(found.expected)
    return Intake(
        assembler,
        Aging(settings.lost_after_seconds),
        _rules(settings, learner),
        expired_before=start.expired_before,
        ones_per_group=settings.ones_per_group,
    )


@contextmanager
def _fenced_if_taken_over(run: Run, commits: Commits, known: KnownHistory) -> Iterator[None]:
    """Tell an expired transaction or id from a takeover: the broker answers alike.

    Whether another process took over shows on the ledger: then it has a newer version, and not of this process.
    """
    try:
        yield
    except ExpiredTransactionError as error:
        later = Passing(run=run, skipped=frozenset(), starts={LEDGER.name: known.ledger_offset})
        for _, entry in later.entries(lambda *_: None):
            if entry.incarnation != commits.incarnation and entry.weight_version > commits.weight_version:
                raise FencedError(
                    f"another process took over: {entry.incarnation} wrote version {entry.weight_version}"
                ) from error
        raise


def _commits(
    settings: TrainerSettings, run: Run, publisher: TransactionalPublisher, stores: Stores, found: _Found
) -> Commits:
    incarnation = new_incarnation(found.known.ledger_topic_id)
    _LOG.info("incarnation %s of the trainer of run %s", incarnation, settings.run)
    return Commits(
        run=run, publisher=publisher, stores=stores, known=found.known, incarnation=incarnation,
        dtype=settings.learning.dtype, keep_versions=settings.keep_versions,
        keep_checkpoints=settings.keep_checkpoints, remember_seconds=found.remember_seconds,
    )  # fmt: skip


def _load_learner(settings: TrainerSettings) -> "Learner":
    # Imports torch, which takes seconds: by now health is served.
    from rollstream.training.learning.learner import Learner

    return Learner.from_model(settings.model_path, settings.learning)


def _restored_position(run: Run, source: Run, plan: RestartPlan, checkpoint: Path | None) -> Position:
    """The checkpoint's position, checked against this cluster; without a checkpoint the start of every topic."""
    identity = source.admin().identity([source.topic(PROMPTS), source.topic(SCORED)])
    if checkpoint is None:
        if plan.parent is not None:
            check_noted(_noted(run, source), identity.topic_ids)
        return Position(
            run=run.name, weight_version=plan.version, step=plan.step, cluster_id=identity.cluster_id,
            topic_ids=identity.topic_ids, next_offsets=(), open_groups=(),
        )  # fmt: skip
    position = read_position(checkpoint)
    check_position(position, identity)
    return position


def _noted(run: Run, source: Run) -> set[tuple[str, str]]:
    """The topics that the trainers before this one read, with their ids, as they said beside what they committed."""
    with closing(run.committed_by("trainer")) as committed:
        topics = [source.topic(PROMPTS), source.topic(SCORED)]
        return set().union(*(committed.topic_ids(topic, source.admin().shape(topic)) for topic in topics))


def _remember_seconds(source: Run) -> float | None:
    """How long after its group closed a record may come, at most: as long as `prompts` and `scored` keep any."""
    try:
        kept = source.admin().kept_seconds([source.topic(PROMPTS), source.topic(SCORED)])
    except BrokerError as error:
        _LOG.warning("closed groups stay remembered: how long topics keep records is unknown: %s", error)
        return None
    return None if kept is None else with_margin(kept)


def _rules(settings: TrainerSettings, learner: "Learner") -> AdmissionRules:
    return AdmissionRules(
        max_policy_lag=settings.max_policy_lag,
        max_served_lag=settings.max_served_lag,
        lag_scope=settings.lag_scope,
        train_without_spread=settings.train_without_spread,
        train_truncated=settings.train_truncated,
        credit=settings.credit,
        turn_weights=settings.learning.turn_weights,
        advantages=settings.learning,
        kl_in_reward=settings.learning.kl_reward_coefficient > 0,
        tokenizer_sha256=learner.tokenizer_sha256,
        chat_template_sha256=learner.chat_template_sha256,
        bounds=learner.bounds,
    )
