"""The files of a collection, all beside its output and named after it; and the lock that only one process can hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollstream.process.files import held
from rollstream.rows.write import restore_replaced


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """`output` is the file or directory with the rollouts.

    `beside`: how the names of the others begin; "": with the whole name of the output.
    """

    output: Path
    beside: str = ""

    @property
    def progress(self) -> Path:
        """What the collection was begun with, and what of it is done."""
        return self._named("_progress.sqlite")

    @property
    def failures(self) -> Path:
        """Bad rows, and samples without a response or without a reward, each with its reason."""
        return self._named("_failures.jsonl")

    @property
    def picture(self) -> Path:
        """The distribution of the rewards."""
        return self._named("_rewards.png")

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
        return self.output.with_name((self.beside or self.output.name) + ending)
