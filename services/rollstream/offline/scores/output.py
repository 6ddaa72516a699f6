"""The output of `analyze-rewards`: the rows of the rollouts with what was noted of them. Constant memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollstream.offline.progress import Progress
from rollstream.offline.scores.earlier import EarlierColumns
from rollstream.offline.scores.request import ScoresRequest
from rollstream.offline.statistics import Reasons, StatisticsBySource
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.schemas.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Score:
    """What scoring the row with this number gave: a reward, or the failure that says why there is none."""

    row: int
    reward: float | None
    failure: str | None = None

    def note(self, progress: Progress) -> None:
        """Note it as done."""
        noted = {"failure": self.failure} if self.reward is None else {"reward": self.reward}
        progress.note(self.row, 0, noted, is_completed=self.reward is not None)


@dataclass(slots=True)
class ScoresReport:
    """What a run found."""

    output: Path
    num_rows: int = 0
    num_scored: int = 0
    num_resumed: int = 0
    """Rows that were scored, or found to have no reward, by an earlier run of the same command that was stopped."""
    by_source: StatisticsBySource = field(default_factory=StatisticsBySource)
    unscored: Reasons = field(default_factory=Reasons)
    bad_rows: Reasons = field(default_factory=Reasons)
    """Rows that can't be read; they are not in the output."""
    earlier: tuple[str, ...] = ()
    """Columns of an earlier output that are in this one too."""
    num_changed: int = 0
    """Rows whose earlier rewards were left out, because the row is another now, or gone."""


class ScoredRows:
    """The rows of the output. `report` is about the last time that they were all read."""

    def __init__(self, rollouts: RowSource, identity: str, progress: Progress, request: ScoresRequest) -> None:
        self._rollouts = rollouts
        self._identity = identity
        self._progress = progress
        self._request = request
        self.report = ScoresReport(request.output)

    def read(self) -> Iterator[dict[str, Any]]:
        """All rows, anew.

        Raises `ConfigurationError` if none can be read, or if they are not those that were scored.
        """
        self.report = report = ScoresReport(self._request.output)
        earlier = EarlierColumns(self._request.output, self._request.function.column)
        scores = (Score(row, noted.get("reward"), noted.get("failure")) for row, noted in self._progress.each_row())
        for row in self._rollouts:
            report.num_rows += 1
            if isinstance(row, BadRow):
                report.bad_rows.add(f"unreadable: {row.why}", row.where)
            else:
                score = next(scores, None)
                if score is None or score.row != row.number:
                    raise self._changed()
                yield {**row.fields, **earlier.beside(row.fields), **self._columns(row, score)}
        earlier.end()
        # Else scores would get to other rows.
        if open_rows(self._request.rollouts).identity() != self._identity:
            raise self._changed()
        if report.bad_rows.total == report.num_rows:
            raise ConfigurationError(
                f"no row of {self._request.rollouts} can be read: {'; '.join(report.bad_rows.lines())}"
            )
        report.earlier, report.num_changed = tuple(earlier.names), earlier.num_changed

    def _columns(self, row: ReadRow, score: Score) -> dict[str, Any]:
        """What is written of a score. Counts the row."""
        request, report = self._request, self.report
        source = request.source_of(row.fields)
        normalized = passed = None
        if score.reward is not None:
            judging = request.function.judging(source)
            if judging is not None:
                normalized, passed = judging.normalized(score.reward), judging.passes(score.reward)
            if request.pass_threshold is not None:
                passed = score.reward >= request.pass_threshold
            report.num_scored += 1
        report.by_source.add(source, score.reward, passed)
        if score.failure is not None:
            report.unscored.add(score.failure, row.where)
        return {
            request.function.column: score.reward,
            "reward": score.reward,
            "reward_normalized": normalized,
            "passed": passed,
            "reward_failure": score.failure,
        }

    def _changed(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._request.rollouts} changed while it was scored, so nothing is written: bring back what it was, or "
            f"remove {self._progress.path} to score all rows anew"
        )
