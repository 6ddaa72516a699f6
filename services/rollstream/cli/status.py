"""`rollstream status`: topics, lag, processes and versions of a run, live."""

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollstream.cli.options import json_option, settings_option
from rollstream.process.settings import StageSettings
from rollstream.schemas.errors import BrokerError
from rollstream.views.rendering import one_line
from rollstream.views.snapshot import Snapshot, StatusSource

_REFRESH_SECONDS: Final = 2.0
_METRICS: Final = (
    "reward_mean", "loss", "grad_norm", "entropy", "policy_lag_mean", "policy_lag_max", "zero_std_ratio",
    "completion_tokens_mean", "generated_tokens_per_second", "trained_tokens_per_second",
)  # fmt: skip


@click.command()
@click.option("--once", is_flag=True, help="Print the state once and end.")
@json_option
@settings_option
def command(once: bool, as_json: bool, settings: StageSettings) -> None:
    """Show topics, lag, processes and versions of a run, every two seconds until Ctrl-C."""
    source = StatusSource(settings)
    if as_json:
        click.echo(json.dumps(source.snapshot().as_plain()))
        return
    first = source.snapshot()
    if once:
        Console().print(rendered(first))
        return
    with Live(rendered(first), auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_SECONDS)
            live.update(_look(source), refresh=True)


def rendered(snapshot: Snapshot) -> RenderableType:
    """The tables of one snapshot."""
    return Group(_topics(snapshot), _lags(snapshot), _fleet(snapshot), _producers(snapshot), _newest(snapshot))


def _look(source: StatusSource) -> RenderableType:
    try:
        return rendered(source.snapshot())
    # A broker that restarts must not end the view.
    except BrokerError as error:
        return Text(f"{error}; trying again", style="red")


def _topics(snapshot: Snapshot) -> Table:
    title = f"run {snapshot.run}, {snapshot.taken_at:%H:%M:%S} UTC"
    rows = (
        (topic.name.removeprefix(f"{snapshot.run}."), topic.num_partitions, topic.replication, topic.num_records)
        for topic in snapshot.topics
    )
    return _table(title, ("topic", "partitions", "replication", "records (at most)"), rows)


def _lags(snapshot: Snapshot) -> Table:
    rows = (
        (lag.group, lag.topic, "never committed" if lag.num_records is None else lag.num_records)
        for lag in snapshot.lags
    )
    return _table("lag", ("group", "topic", "records behind"), rows)


def _fleet(snapshot: Snapshot) -> Table:
    applied = {record.generator_id: record for record in snapshot.applied}
    rows, now = [], snapshot.taken_at
    for member in sorted({*applied, *snapshot.members}):
        beat = snapshot.members.get(member)
        record = applied.get(member)
        newest = record and f"{record.outcome.value} {record.weight_version}, {_ago(record.applied_at, now)}"
        rows.append(
            (
                member,
                "not heard of" if beat is None else str(beat.get("stage", "alive")),
                newest or "",
                "" if beat is None else beat.get("in_flight", ""),
                "" if beat is None or "tokens_per_second" not in beat else f"{beat['tokens_per_second']:.0f}",
            )
        )
    return _table("fleet", ("member", "heartbeat", "newest version", "in flight", "tokens/s"), rows)


def _producers(snapshot: Snapshot) -> Group:
    """Where each producer is, and, of those that live, the sum of the shares."""
    rows = (
        (
            record.producer,
            record.source,
            record.next_sequence,
            len(record.open_groups),
            _ago(record.written_at, snapshot.taken_at),
        )
        for record in snapshot.producers
    )
    columns = ("producer", "source", "next prompt", "open groups", "written")
    return Group(_table("producers", columns, rows), _shares(snapshot))


def _shares(snapshot: Snapshot) -> Table:
    shares = snapshot.shares
    rows: list[tuple[object, ...]] = []
    if shares is not None:
        excess = ", too many" if shares.total > shares.bound else ""
        rows = [*shares.by_member.items(), ("all", f"{shares.total} of at most {shares.bound}{excess}")]
    return _table("credit", ("producer", "share, groups"), rows)


def _newest(snapshot: Snapshot) -> Table:
    table = Table("what", "newest", title="versions", title_justify="left")
    if snapshot.published is not None:
        table.add_row("version", one_line(snapshot.published))
    if snapshot.entry is not None:
        ago = _ago(snapshot.entry.finished_at, snapshot.taken_at)
        table.add_row("ledger", f"{one_line(snapshot.entry)}, {ago}")
    if snapshot.step is not None:
        for name in _METRICS:
            if name in snapshot.step.metrics:
                table.add_row(name, f"{snapshot.step.metrics[name]:.4g}")
    return table


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def _ago(then: datetime, now: datetime) -> str:
    """How long ago `then` was, in the largest unit with a value of at least 2."""
    seconds = max(0.0, (now - then).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
