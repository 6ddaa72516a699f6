"""Opens the archive of a run and makes passes: one, or one after the other until the process is to end."""

from collections.abc import Callable
from pathlib import Path

from rollstream.archive.archiver import Archiver, Report
from rollstream.archive.reading import identity_of
from rollstream.archive.store import Store
from rollstream.bus.run import Run
from rollstream.process.stop import Stop
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED


def archive(
    run: Run, directory: Path, told: Callable[[Report], None], *, every_seconds: float | None = None,
    accept_loss: bool = False, stop: Stop,
) -> None:  # fmt: skip
    """Bring the archive up to date, once, or every so many seconds until `stop`. `told` gets the report of each pass.

    Raises `ConfigurationError` if the directory is not this run's archive or can't be written, or if the topics have
    lost records that were not archived; `BrokerError` if no broker answers. Each time it can be started again.
    """
    run.require_topics(LEDGER, PROMPTS, SCORED)
    with Store.writing(directory, identity_of(run)) as store:
        archiver = Archiver(run, store, accept_loss=accept_loss, stop=stop)
        while True:
            told(archiver.make_pass())
            if every_seconds is None or stop.wait(every_seconds):
                return
