"""Follows a running loop on its topics, for the demo's live table."""

from collections.abc import Mapping
from dataclasses import dataclass

from rollstream.bus.run import Run
from rollstream.history.ledger import Survivors, surviving
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.topics import LEDGER, WEIGHTS_APPLIED
from rollstream.schemas.weights import ApplyOutcome


@dataclass(slots=True, kw_only=True)
class LoopState:
    """The state of the loop, as far as the topics show it."""

    step: int = 0
    version_published: int | None = None
    version_applied: int | None = None
    rewards: tuple[float, ...] = ()
    """Mean reward of each surviving step."""
    last: LedgerEntry | None = None
    groups_trained: int = 0
    groups_dropped: int = 0

    def metric(self, name: str) -> float | None:
        return None if self.last is None else self.last.metrics.get(name)


class LoopWatch:
    """Follows `ledger` and `weights-applied`. `poll` waits too, so its caller needs no sleep between two calls."""

    def __init__(self, run: Run) -> None:
        self._ledger_topic = run.topic(LEDGER)
        self._ledger = run.codec(LEDGER)
        self._applied = run.codec(WEIGHTS_APPLIED)
        self._reader = run.reader(LEDGER, WEIGHTS_APPLIED, follows=True)
        self._entries: list[LedgerEntry] = []
        self.state = LoopState()

    def poll(self, timeout_seconds: float = 0.25) -> LoopState:
        """Read new records, waiting at most `timeout_seconds` for the first."""
        for message in self._reader.poll(timeout_seconds=timeout_seconds):
            if message.topic == self._ledger_topic:
                self._note_entry(self._ledger.decode(message.value))
            else:
                applied = self._applied.decode(message.value)
                if applied.outcome is ApplyOutcome.APPLIED:
                    self.state.version_applied = applied.weight_version
        return self.state

    def close(self) -> None:
        self._reader.close()

    @property
    def surviving_steps(self) -> list[LedgerEntry]:
        """The steps that count, in order."""
        return _steps(surviving(self._entries))

    @property
    def closed(self) -> Mapping[str, ClosedGroup]:
        """group_id → how it closed, as far as that counts."""
        return surviving(self._entries).closed

    def _note_entry(self, entry: LedgerEntry) -> None:
        self._entries.append(entry)
        survivors = surviving(self._entries)
        state, steps = self.state, _steps(survivors)
        state.step = survivors.step
        state.version_published = survivors.current_version
        state.last = steps[-1] if steps else None
        state.rewards = tuple(step.metrics["reward_mean"] for step in steps)
        state.groups_trained = sum(1 for group in survivors.closed.values() if group.outcome is GroupOutcome.TRAINED)
        state.groups_dropped = len(survivors.closed) - state.groups_trained


def _steps(survivors: Survivors) -> list[LedgerEntry]:
    return [entry for entry in survivors.chain if entry.kind is EntryKind.STEP]
