"""The files of a collection, all beside its output and named after it; and the lock that only one process can hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollstream.process.files import held
from rollstream.rows.write import restore_replaced


@dataclass(frozen=True, slots=True)
class Places:
    """`output` is the file or directory with the rollouts."""

    output: Path

    @property
    def journal(self) -> Path:
        """Every sample that ended, in the order of their ends; kept as long as a sample is missing or failed."""
        return self._named("_journal.jsonl")

    @property
    def manifest(self) -> Path:
        """What the collection was begun with."""
        return self._named("_manifest.json")

    @property
    def failures(self) -> Path:
        """Bad rows, and samples without a response or without a reward, each with its reason."""
        return self._named("_failures.jsonl")

    @property
    def picture(self) -> Path:
        """The distribution of the rewards."""
        return self._named("_rewards.png")

    @property
    def index(self) -> Path:
        """Where each sample is in the journal; only while the output is written."""
        return self.output.with_name(f".{self.output.name}.index")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the output for this process alone; raises `ConfigurationError` if another one holds it.

        The kernel frees it when the process ends, however that happens. What one left that was killed while it replaced
        the output is put right first.
        """
        with held(self.output):
            restore_replaced(self.output)
            yield

    def _named(self, ending: str) -> Path:
        return self.output.with_name(self.output.name + ending)
