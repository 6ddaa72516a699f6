"""What `analyze-rewards` says at its end, as lines of text and as JSON values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollstream.offline.paths import OutputPaths
from rollstream.offline.scores.output import ScoresReport
from rollstream.offline.statistics import SourceStatistics
from rollstream.process.terminal import escaped


def score_lines(report: ScoresReport) -> Iterator[str]:
    """One line on the file, one a data source, one a reason."""
    num_unscored = report.unscored.total
    yield f"{report.output}: {report.num_rows} rows, {report.num_scored} scored, {num_unscored} not scored"
    for name, statistics in report.by_source.sources.items():
        yield f"  {name or '(no data source)'}: {_of_source(statistics)}"
    yield from (f"  not scored: {line}" for line in report.unscored.lines())
    yield from (f"  left out: {line}" for line in report.bad_rows.lines())
    if report.num_resumed:
        yield (
            f"  {report.num_resumed} of these rows were scored by an earlier run, which was stopped; the same command "
            "scores all anew now"
        )
    if report.earlier:
        yield f"  kept from the earlier output: {', '.join(report.earlier)}"
    if report.num_changed:
        yield (
            f"  {report.num_changed} rows changed since an earlier run, or are gone, and its rewards say nothing about "
            "what is there now: score again with its function"
        )


def stopped_line(output: Path) -> str:
    """What Ctrl-C leaves."""
    progress = OutputPaths(output).progress
    if not progress.exists():
        return "stopped: no row was scored yet; the same command begins anew"
    return escaped(f"stopped: what was scored is in {progress.name}; the same command goes on from there")


def _of_source(statistics: SourceStatistics) -> str:
    rewards = statistics.rewards
    if not rewards.num:
        return f"none of {rewards.num_without} scored"
    rate = statistics.pass_rate
    passing = "pass rate not known" if rate is None else f"{rate:.1%} pass"
    return (
        f"mean {rewards.mean:.4g}, std {rewards.std:.4g}, min {rewards.lowest:.4g}, max {rewards.highest:.4g}, "
        f"{passing}, {rewards.num} scored, {rewards.num_without} not scored"
    )


def scores_plain(report: ScoresReport) -> dict[str, Any]:
    """The same as JSON values. Standard deviations divide by n."""
    return {
        "output": str(report.output),
        "num_rows": report.num_rows,
        "num_scored": report.num_scored,
        "num_resumed": report.num_resumed,
        "by_source": {name: statistics.plain() for name, statistics in report.by_source.sources.items()},
        "unscored": report.unscored.plain(),
        "rows_left_out": report.bad_rows.plain(),
        "earlier_rewards": list(report.earlier),
        "num_changed": report.num_changed,
    }
