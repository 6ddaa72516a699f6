"""Evaluates a run's weight versions as they are published, in a process of its own.

Consumes   `ledger`, from its end on, whose entries name the newest version; what `evaluate.py` does.
Produces   a line of the results' file for each version that was evaluated; what `evaluate.py` does.
Waits for  so many newer versions; the answers to its prompts, for a bounded time.
Unblocked  by the trainer's commits, and by generators and scorers.

What happens when …
  … versions come faster than they are evaluated: the newest is evaluated next, since generators have that one. How many
    were due meanwhile the result says. The trainer waits for none of it.
  … this process is killed: the next one goes on after the last line. No version gets a second one.
  … it is asked to stop: what it is evaluating gets no line.
  … generators move on to a newer version, as they do after `evaluation_hold_seconds`: the samples that are left fail
    as version_gone, and their prompts are counted as failed.
  … somebody else publishes a version on `weights`: it is not evaluated, since no entry of the ledger names it.
  … the broker does not answer: the process ends, non-zero.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollstream.bus.run import Run
from rollstream.client import metrics
from rollstream.client.evaluate import evaluate
from rollstream.client.evaluation import EvaluationReport, EvaluationRequest
from rollstream.client.results import Results
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER

_LOG = logging.getLogger(__name__)
_SPARE_SECONDS = 60.0
# The last one that is readable and no repair names the newest version.
_NEWEST_ENTRIES = 64


@dataclass(kw_only=True)
class Follower:
    """Evaluates the newest version whenever another multiple of `every` is passed, and adds the results to a file.

    `request` says what to evaluate; its version is replaced. `told` gets each result once it is in the file.
    """

    run: Run
    request: EvaluationRequest
    every: int
    results: Results
    told: Callable[[EvaluationReport], None]
    health: Health

    def follow(self, stop: Stop) -> None:
        """Go on until `stop` is asked. Raises what `evaluate` and `Results.add` raise, and `BrokerError`."""
        self.run.make_codecs(LEDGER)
        start = {one: max(first, end - _NEWEST_ENTRIES) for one, (first, end) in self.run.bounds(LEDGER).items()}
        self.health.check("evaluation", True, "no version was evaluated yet")
        newest: int | None = None
        with self.run.reader(LEDGER, start=start, follows=True) as reader:
            while not stop.is_asked:
                self.health.heartbeat("loop", max_age_seconds=self.request.deadline_seconds + _SPARE_SECONDS)
                for message in reader.poll(timeout_seconds=0.2):
                    entry = self.run.decoded(LEDGER, message)
                    if entry is not None and entry.kind not in (EntryKind.SKIP, EntryKind.UNKNOWN):
                        newest = entry.weight_version
                if newest is not None and reader.at_end() and self._is_due(newest):
                    self._evaluate(newest, stop)

    def _is_due(self, newest: int) -> bool:
        """Whether another multiple of `every` was reached; the first version that is seen is evaluated too."""
        last = self.results.last_version
        if last is not None and newest < last:
            raise ConfigurationError(
                f"the results end with version {last}, the newest of run {self.run.name} is {newest}: they are of an "
                "earlier run of this name; name another --output"
            )
        return last is None or newest // self.every > last // self.every

    def _evaluate(self, version: int, stop: Stop) -> None:
        last = self.results.last_version
        num_skipped = 0 if last is None else version // self.every - last // self.every - 1
        if num_skipped:
            _LOG.warning(
                "%d evaluations are skipped, version %d comes after %d: ask fewer --num-prompts or --samples, or raise "
                "--every above %d", num_skipped, version, last, self.every,
            )  # fmt: skip
        report = evaluate(self.run, replace(self.request, weight_version=version), stop=stop)
        if stop.is_asked:
            return
        more = {"num_skipped": num_skipped, "evaluated_at": utc_now().isoformat()}
        self.results.add({"run": self.run.name, **report.as_plain(), **more})
        metrics.export(report, num_skipped)
        self.health.check("evaluation", True, f"version {version} was evaluated")
        self.told(report)
