"""What `analyze-rewards` and `filter-difficulty` say at their end, as lines of text and as JSON values."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from rollstream.collect.difficulty.buckets import BUCKETS, UNKNOWN
from rollstream.collect.difficulty.filtering import FilterReport
from rollstream.collect.scores.run import ScoresReport
from rollstream.collect.scores.statistics import SourceStatistics
from rollstream.process.terminal import escaped


def say(told: Iterable[str] | Mapping[str, Any]) -> None:
    """Print lines for people, with control characters as escapes; or one JSON object."""
    if isinstance(told, Mapping):
        click.echo(json.dumps(told))
        return
    for line in told:
        click.echo(escaped(line))


def score_lines(report: ScoresReport) -> Iterator[str]:
    """One line on the file, one a data source, one a reason."""
    num_unscored = report.unscored.total
    yield f"{report.output}: {report.num_rows} rows, {report.num_scored} scored, {num_unscored} not scored"
    for name, statistics in report.by_source.sources.items():
        yield f"  {name or '(no data source)'}: {_of_source(statistics)}"
    yield from (f"  not scored: {line}" for line in report.unscored.lines())
    yield from (f"  left out: {line}" for line in report.bad_rows.lines())
    if report.earlier:
        yield f"  kept from earlier runs: {', '.join(report.earlier)}"
    if report.num_changed:
        yield (
            f"  {report.num_changed} rows changed since an earlier run, and its rewards say nothing about them: score "
            "them again with its function"
        )


def _of_source(statistics: SourceStatistics) -> str:
    rewards = statistics.rewards
    if not rewards.count:
        return f"none of {statistics.num_unscored} scored"
    rate = statistics.pass_rate
    passing = "pass rate not known" if rate is None else f"{rate:.1%} pass"
    return (
        f"mean {rewards.mean:.4g}, std {rewards.std:.4g}, min {rewards.lowest:.4g}, max {rewards.highest:.4g}, "
        f"{passing}, {rewards.count} scored, {statistics.num_unscored} not scored"
    )


def scores_plain(report: ScoresReport) -> dict[str, Any]:
    """The same as JSON values. Standard deviations divide by n."""
    return {
        "output": str(report.output),
        "num_rows": report.num_rows,
        "num_scored": report.num_scored,
        "by_source": {name: statistics.plain() for name, statistics in report.by_source.sources.items()},
        "unscored": report.unscored.plain(),
        "rows_left_out": report.bad_rows.plain(),
        "earlier_rewards": list(report.earlier),
        "num_changed": report.num_changed,
    }


def filter_lines(report: FilterReport) -> Iterator[str]:
    """One line on the whole, one a bucket, one a reason."""
    totals = report.totals
    yield f"{totals.counts.total()} problems of {report.num_rows} rows, divided by {report.strategy}"
    for bucket in (*BUCKETS, UNKNOWN):
        if totals.counts[bucket]:
            reward, rate = totals.mean(bucket, "reward"), totals.mean(bucket, "pass_rate")
            told = "" if reward is None else f", mean reward {reward:.3f}"
            told += "" if rate is None else f", pass rate {rate:.1f} %"
            yield f"  {bucket}: {totals.counts[bucket]} problems, {report.rows_by_bucket[bucket]} rows{told}"
    yield from (f"  note: {note}" for note in report.notes)
    yield from (f"  not scored: {line}" for line in report.unscored.lines())
    yield from (f"  left out: {line}" for line in report.bad_rows.lines())
    yield f"  written: {', '.join(str(path) for path in report.files)}"
