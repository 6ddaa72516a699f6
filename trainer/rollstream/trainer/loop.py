"""The trainer stage: scored groups in, optimizer steps, weight versions and ledger entries out.

Consumes   `prompts` (which groups there are) and `scored` (their samples), from the checkpoint's offsets.
Produces   `weights` and `ledger`, in one transaction a step; `dead-letters` for samples that can't be read.
Waits for  groups_per_step admitted groups; ones_per_group groups of one are one.
Unblocked  by scorers, which publish samples; before them by producers, whose credit returns when groups close here.

The parts that the loop works with, and what each answers:
  RolloutReader    intake/reading.py              Which records came? How far are the topics read?
  Assembler        intake/assembler.py            Which group does a record belong to? Which groups are complete?
  Intake           intake/intake.py               Which groups make the next step?
  Aging            intake/aging.py                Which groups will never be complete?
  UpstreamWatcher  intake/upstream.py             How far are the generators and the scorers?
  Learner          training/learning/learner.py   What does the policy become after these samples?
  Commits          commits/commit.py              What counts, and where would the next trainer go on?
  VersionTree      history/versions.py            How many optimizer steps old is a weight version?
  Health           process/health.py              Does this process live, and is it ready?

One thread: poll → assemble → admit → train → commit. It reads without a consumer group, so Kafka cannot remove it
during a long step. After half an hour in a step it counts as hung. It commits offsets only for tools that show its lag.
While it trains it does not read: records wait on Kafka, and the other stages go on while producers have credit.

What happens when …
  … this process is killed: only what a transaction put on `weights` and `ledger` counts (`commit.py`). The next
    trainer restores the newest checkpoint that the ledger names. Steps after it are cut, their groups are open again.
  … a record comes twice: if its group is open, a completed attempt replaces one that is not, else the first one stays.
    If its group is closed, the record is discarded (`assembler.py`). Groups that closed so long ago that topics hold
    none of their records are forgotten: a prompt from before that closes as `expired`. So no rollout counts in two
    surviving steps.
  … a sample can't be read: it goes to dead-letters. Its group lacks it and closes as `lost` (`aging.py`). A prompt
    that can't be read opens no group; the generators put it into dead-letters.
  … samples are failed, unresolved or truncated: the others of their group train, if at least half completed. One
    completed sample of another tokenizer or of an unknown version drops its whole group (`DropReason` has every
    reason). No starts are counted here, so a poison record is never given up.
  … a group has one sample, as an answer to a client with its feedback: it is compared with the step's other groups of
    one of its environment (`ones.py`), and waits until there is another one (`waiting.py`). It never trains without
    the client's consent, nor if it was not sampled from the policy's own distribution.
  … a sample is late, i.e. its policy lag exceeds max_policy_lag, or max_served_lag if it answered a client, who may
    judge it hours later: its group closes as `too_old` (`admission.py`). With lag_scope = "token" its old tokens are
    masked instead. A step that would make an incomplete group too old waits for it, for wait_for_late_seconds at most:
    else the groups with the longest samples would be dropped for their length.
    How old it is its samples tell, or before they come the generators, beside what they commit (`aging.py`). That is
    the word of anybody who may commit for them: a wrong one costs at most that wait for each step.
    That is the rule of stale synchronous parallel training (Ho et al., NeurIPS 2013): the fast wait for the slowest.
  … samples never come: their group closes as `lost` once generators and scorers are done with it and what `scored`
    held then is read (`aging.py`). So no stage that stands still loses a group.
  … a loss or gradient is not finite: the rest of the step is skipped. If no update was applied before, the step's
    groups close as `non_finite`. Three steps in a row with a skip end the process; the next trainer's first entry
    closes their groups again, so that they do not end it too (`restart.py`).
  … `prompts` or `scored` get more partitions: they are read too. One that is made anew ends the process;
    the next trainer refuses to start, since the checkpoint's offsets mean nothing there (`bus/topic_watch.py`).
  … it is asked to stop: the running step is committed, then a checkpoint is handed over to the next trainer
    (`commit.py`).
  … a record of `ledger` or `weights` can't be read at the start, or contradicts others: the process ends, non-zero.
    Each record there counts. `rollstream ledger check` shows them, `ledger repair` has readers pass over them.
  … another trainer takes the run over: this one is fenced at its next transaction and exits with 75.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rollstream.history.versions import VersionTree
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.process.tracing.context import log_keys
from rollstream.process.tracing.spans import OFF, Span, Tracing
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.ledger import LedgerEntry, TrainedRollout
from rollstream.trainer import metrics
from rollstream.trainer.commits.checkpoint import Position, as_next_offsets
from rollstream.trainer.commits.commit import MOST_CLOSED_PER_ENTRY, CheckpointRequest, Commits, StepRecord
from rollstream.trainer.intake.admission import Admitted
from rollstream.trainer.intake.groups import DroppedGroup, DropReason
from rollstream.trainer.intake.intake import Intake
from rollstream.trainer.intake.reading import RolloutReader
from rollstream.trainer.intake.upstream import Clock, UpstreamWatcher
from rollstream.trainer.reporting import StepClock, metrics_of_drops, metrics_of_step, tokens_by_lag
from rollstream.trainer.settings import TrainerSettings
from rollstream.trainer.since_step import SinceStep
from rollstream.trainer.tracing import end_dropped, end_step, step_span
from rollstream.training.learning.step_metrics import StepReport

if TYPE_CHECKING:
    from rollstream.training.learning.learner import Learner

_LOG = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2
# Drops made in this time share an entry, and credit still comes back within a second.
_HOLD_DROPS_SECONDS: Final = 0.5
_MONITOR_EVERY_SECONDS: Final = 5.0
_MAX_SKIPS_IN_A_ROW: Final = 3
# What people have to look at: all groups may be dropped so, and training stands still.
_LEVELS: Final = {
    DropReason.TOKENIZER_MISMATCH: logging.ERROR,
    DropReason.NO_TOKENS: logging.ERROR,
    DropReason.EXPIRED: logging.WARNING,
}
# No heartbeat is given while a step runs, so this must exceed the longest step.
_HUNG_AFTER_SECONDS: Final = 1800.0


@dataclass(eq=False, kw_only=True)
class Trainer:
    """The loop of one trainer process, from its first ledger entry on.

    `restored`: the checkpoint's position; without one, the start of every topic. `versions` are kept up to date by
    `commits`. `clock` gives the seconds by which groups age.
    """

    settings: TrainerSettings
    learner: "Learner"
    commits: Commits
    intake: Intake
    reader: RolloutReader
    upstream: UpstreamWatcher
    versions: VersionTree
    restored: Position
    health: Health
    clock: Clock
    tracing: Tracing = OFF

    def __post_init__(self) -> None:
        self._assembler = self.intake.assembler
        self._spent = StepClock()
        self._since = SinceStep()
        self._num_duplicates = 0
        self._oldest_drop: float | None = None
        self._checkpointed_step = self.restored.step
        self._monitored_at = 0.0
        self._looked_at = self.upstream.latest
        self._skips_in_a_row = 0
        self._held_since: float | None = None

    def run(self, stop: Stop) -> None:
        """Train until num_steps are committed or `stop` is asked; then write what is left to the ledger.

        Raises `FencedError` once another trainer took over. Raises `BrokenWorldError`, so that the process ends and
        its supervisor restarts it, when nothing can be trained or committed until something outside is repaired.
        """
        self.health.check("ledger", True, f"version {self.commits.weight_version}")
        while not self._is_done:
            batch = self._next_batch(stop)
            if batch is None:
                break
            self._train(batch, stop)
        self.health.draining()
        self._publish_drops()
        if self.commits.step > self._checkpointed_step:
            metrics.export(self.commits.hand_over(self._checkpoint()))

    @property
    def _is_done(self) -> bool:
        return 0 < self.settings.num_steps <= self.commits.step

    def _next_batch(self, stop: Stop) -> Sequence[Admitted] | None:
        """Read until a step is due and not held back; None when `stop` is asked."""
        intake = self.intake
        while not stop.is_asked:
            self.health.heartbeat("loop", _HUNG_AFTER_SECONDS)
            is_due = intake.num_ready >= self.settings.groups_per_step
            # A step that is held back waits for samples: a full buffer must not keep them away.
            if intake.num_ready < self.settings.resolved_buffer_groups or self._held_since is not None:
                self._read(0.0 if is_due and self._held_since is None else _POLL_SECONDS)
            if not self._is_held():
                batch = intake.batch(self.settings.groups_per_step, self._lag)
                if batch is not None:
                    return batch
            self._publish_due_drops()
            self._show()
        return None

    def _is_held(self) -> bool:
        """Whether a step is due, but would make an incomplete group too old; false after wait_for_late_seconds.

        With as many complete groups as all producers may have open there is nothing to wait for.
        """
        settings, intake, now = self.settings, self.intake, time.monotonic()
        since = now if self._held_since is None else self._held_since
        is_held = (
            settings.groups_per_step <= intake.num_ready < settings.max_open_groups
            and now - since < settings.wait_for_late_seconds
            and intake.has_late(self._lag)
        )
        if is_held and self._held_since is None:
            _LOG.info("step %d waits for groups that it would make too old", self.commits.step + 1)
        self._held_since = since if is_held else None
        if not is_held:
            self._spent.late_seconds += now - since
        return is_held

    def _read(self, timeout_seconds: float) -> None:
        began = time.perf_counter()
        messages = self.reader.poll(timeout_seconds)
        polled = time.perf_counter()
        if not messages:
            self._spent.waiting_seconds += polled - began
        self.reader.assemble(messages, self._assembler)
        self.intake.settle(self._lag)
        self._age()
        self._spent.assembling_seconds += time.perf_counter() - (polled if not messages else began)

    def _age(self) -> None:
        """Give up groups that will never be complete, whenever there is a new answer about the other stages."""
        self.intake.tick(self.clock(), is_fresh=self.upstream.is_fresh)
        if self.upstream.latest is not self._looked_at:
            self._looked_at = self.upstream.latest
            self.intake.give_up_lost(self._looked_at, self.reader.read_up_to())

    def _train(self, batch: Sequence[Admitted], stop: Stop) -> None:
        """One optimizer step, and its commit."""
        # Imports torch, which has been done by now.
        from rollstream.training.learning.reference import prepared
        from rollstream.training.learning.train_step import train_step

        span = step_span(self.tracing, batch)
        began = time.perf_counter()
        samples = prepared(self.learner, [sample for admitted in batch for sample in admitted.training])
        self._spent.preparing_seconds += time.perf_counter() - began
        report = train_step(self.learner, samples, step=self.commits.step + 1)
        if report.num_updates == 0:
            for admitted in batch:
                self._assembler.drop(admitted.group.group_id, DropReason.NON_FINITE)
            _LOG.error(
                "step %d skipped: loss %s, gradient norm %s", self.commits.step + 1, report.loss, report.grad_norm
            )
            span.fail(DropReason.NON_FINITE.value)
            span.end()
            self._publish_drops()
            self._count_skip(report)
            return
        # What is left fits into the step's own entry.
        self._publish_drops(leave=MOST_CLOSED_PER_ENTRY)
        closed = self._assembler.close_trained(admitted.group.group_id for admitted in batch)
        drops = self._take_drops()
        self._since.add_trained(batch)
        record = StepRecord(
            trained=_trained(batch),
            closed=(*closed, *(drop.closed() for drop in drops)),
            metrics={
                **metrics_of_step(batch, drops, self._since, report, self._spent),
                **tokens_by_lag(batch, self._lag),
                **self.intake.lag_by_length.take(),
            },
            started_at=self._spent.started_at,
        )
        # The time to publish this step counts to the next one: this step's metrics are part of what is published.
        self._spent, self._since = StepClock(), SinceStep()
        began = time.perf_counter()
        checkpoint = self._checkpoint() if self._is_checkpoint_due(stop) else None
        entry = self.commits.optimizer_step(record, self.learner.save_weights, checkpoint)
        self._spent.publishing_seconds = time.perf_counter() - began
        end_step(self.tracing, span, batch, entry)
        end_dropped(self.tracing, drops, entry)
        self._committed(entry, span)
        prompts = (admitted.scored[0].scored.rollout.prompt for admitted in batch)
        metrics.note_ages((prompt.submitted_at for prompt in prompts), entry.finished_at)
        self._count_skip(report)

    def _count_skip(self, report: StepReport) -> None:
        """End the process after too many skips in a row; the ledger names their groups by now."""
        self._skips_in_a_row = self._skips_in_a_row + 1 if report.skipped else 0
        if self._skips_in_a_row >= _MAX_SKIPS_IN_A_ROW:
            raise BrokenWorldError(
                f"{self._skips_in_a_row} steps in a row had a non-finite loss ({report.loss}) or gradient norm "
                f"({report.grad_norm}): lower learning_rate, or go back with `rollstream weights rollback`"
            )

    def _committed(self, entry: LedgerEntry, span: Span) -> None:
        if entry.checkpoint is not None:
            self._checkpointed_step = entry.step
        self._note(entry)
        _LOG.info(
            "step %d: loss %.4g, reward %.3f, %d groups trained, %d dropped",
            entry.step,
            entry.metrics["loss"],
            entry.metrics.get("reward_mean", float("nan")),
            entry.metrics["groups_trained"],
            entry.metrics["groups_dropped"],
            extra={
                "weight_version": entry.weight_version,
                "policy_lag": entry.metrics.get("policy_lag_max", 0.0),
                **span.log_keys,
            },
        )
        self._show()

    def _note(self, entry: LedgerEntry) -> None:
        """Take in an entry that is committed."""
        self._assembler.committed(group.group_id for group in entry.closed)
        metrics.export(entry)

    def _is_checkpoint_due(self, stop: Stop) -> bool:
        step = self.commits.step + 1
        return step % self.settings.checkpoint_every == 0 or step == self.settings.num_steps or stop.is_asked

    def _checkpoint(self) -> CheckpointRequest:
        """A checkpoint of now. All groups that are closed now are closed by the entry that will name it, or earlier."""

        def position(weight_version: int, step: int) -> Position:
            return self.restored.model_copy(
                update={
                    "weight_version": weight_version,
                    "step": step,
                    "next_offsets": as_next_offsets(self._assembler.offsets()),
                    "open_groups": self._assembler.open_group_ids(),
                }
            )

        return CheckpointRequest(save_state=self.learner.save_state, position=position)

    def _publish_due_drops(self) -> None:
        """Publish drops when the oldest waited for long enough, or when they fill an entry."""
        if not self._assembler.num_drops:
            self._oldest_drop = None
            return
        now = time.monotonic()
        self._oldest_drop = now if self._oldest_drop is None else self._oldest_drop
        if now - self._oldest_drop >= _HOLD_DROPS_SECONDS or self._assembler.num_drops >= MOST_CLOSED_PER_ENTRY:
            self._publish_drops()

    def _publish_drops(self, leave: int = 0) -> None:
        """Publish drops until at most `leave` are left."""
        while self._assembler.num_drops > leave:
            drops = self._take_drops()
            values = {**metrics_of_drops(drops), **self.intake.lag_by_length.take()}
            entry = self.commits.drops([drop.closed() for drop in drops], values)
            self._note(entry)
            end_dropped(self.tracing, drops, entry)

    def _take_drops(self) -> tuple[DroppedGroup, ...]:
        self._oldest_drop = None
        drops = self._assembler.take_drops(MOST_CLOSED_PER_ENTRY)
        self._since.add_drops(drops)
        for drop in drops:
            level = _LEVELS.get(drop.reason, logging.DEBUG)
            keys = {"group_id": drop.group.group_id, **log_keys(drop.group.trace)}
            _LOG.log(level, "group dropped: %s", drop.reason.value, extra=keys)
        return drops

    def _lag(self, version: int) -> int | None:
        if self.settings.source_run is not None:
            # The other run's versions are not in this run's tree, so no lag is known. The importance weights correct
            # for the difference between the two policies.
            return 0
        return self.versions.lag(version, self.commits.weight_version)

    def _show(self) -> None:
        metrics.OPEN_GROUPS.set(self._assembler.num_open)
        metrics.READY_GROUPS.set(self.intake.num_ready)
        metrics.INCOMPLETE_BYTES.set(self._assembler.incomplete_bytes)
        metrics.DUPLICATES.inc(self._assembler.num_duplicates - self._num_duplicates)
        self._num_duplicates = self._assembler.num_duplicates
        if time.monotonic() - self._monitored_at > _MONITOR_EVERY_SECONDS:
            self._monitored_at = time.monotonic()
            self.reader.commit_for_monitoring(self._assembler.offsets())


def _trained(batch: Sequence[Admitted]) -> tuple[TrainedRollout, ...]:
    """Where the step's samples lie in `scored`: also the truncated ones, which count in the baseline alone."""
    return tuple(
        TrainedRollout(
            rollout_id=sample.scored.rollout.rollout_id,
            attempt_id=sample.scored.rollout.attempt_id,
            subject=sample.scored.rollout.prompt.subject,
            partition=sample.place.partition[1],
            offset=sample.place.offset,
        )
        for admitted in batch
        for sample in admitted.scored
    )
