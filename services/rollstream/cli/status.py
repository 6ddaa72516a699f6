"""`rollstream status`: reward, lag, processes, versions and topics of a run, live."""

import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NoReturn

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollstream.cli.options import json_option, settings_option
from rollstream.process.fleet import EVALUATING
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import BrokerError
from rollstream.schemas.weights import WeightsApplied
from rollstream.views.rendering import cell, json_text, one_line
from rollstream.views.snapshot import Snapshot, StatusSource

_REFRESH_SECONDS: Final = 2.0
_METRICS: Final = (
    "reward_mean", "policy_lag_mean", "policy_lag_max", "loss", "grad_norm", "entropy", "zero_std_ratio",
    "completion_tokens_mean", "generated_tokens_per_second", "trained_tokens_per_second", "served_ratio",
    "served_policy_lag_max", "ones_reward_mean",
)  # fmt: skip


@click.command()
@click.option("--once", is_flag=True, help="Print the state once and end.")
@json_option
@settings_option
def command(once: bool, as_json: bool, settings: StageSettings) -> None:
    """Show reward, lag, processes, versions and topics of a run, every two seconds until Ctrl-C."""
    source = StatusSource(settings)
    if as_json:
        click.echo(json_text(source.snapshot().as_plain()))
    elif once:
        Console().print(rendered(source.snapshot()))
    else:
        # Ctrl-C is how people end it.
        with suppress(KeyboardInterrupt):
            _watch(source)


def rendered(snapshot: Snapshot) -> RenderableType:
    """The state in the order in which people look: a terminal of 24 lines cuts off what comes last."""
    parts = (_head, _metrics, _evaluations, _lags, _fleet, _producers, _newest, _topics)
    return Group(*(part(snapshot) for part in parts))


def _watch(source: StatusSource) -> NoReturn:
    with Live(rendered(source.snapshot()), auto_refresh=False) as live:
        live.refresh()
        while True:
            time.sleep(_REFRESH_SECONDS)
            live.update(_look(source), refresh=True)


def _look(source: StatusSource) -> RenderableType:
    try:
        return rendered(source.snapshot())
    # A broker that restarts must not end the view.
    except BrokerError as error:
        return cell(f"{error}; trying again", "red")


def _head(snapshot: Snapshot) -> Text:
    step = snapshot.step
    at = f"step {step.step}, {_ago(step.finished_at, snapshot.taken_at)}" if step else "no step yet"
    version = f"version {snapshot.published.weight_version}" if snapshot.published else "no version yet"
    return cell(f"run {snapshot.run}, {snapshot.taken_at:%H:%M:%S} UTC: {at}, {version}", "bold")


def _metrics(snapshot: Snapshot) -> Text:
    found = snapshot.step.metrics if snapshot.step else {}
    return cell("  ".join(f"{name} {found[name]:.4g}" for name in _METRICS if name in found))


def _evaluations(snapshot: Snapshot) -> Table:
    """What the processes that evaluate say of the newest version that they evaluated; anyone may have said it."""
    columns = ("environment", "version", "reward", "passes", "prompts")
    rows = (
        tuple(state.get(column, "") for column in columns)
        for state in snapshot.members.values()
        if state.get("stage") == EVALUATING
    )
    return _table(("evaluation of", *columns[1:]), rows)


def _lags(snapshot: Snapshot) -> Table:
    rows = (
        (lag.group, lag.topic, "never committed" if lag.num_records is None else lag.num_records)
        for lag in snapshot.lags
    )
    return _table(("lag of", "on topic", "records behind"), rows)


def _fleet(snapshot: Snapshot) -> Table:
    applied = {record.generator_id: record for record in snapshot.applied}
    rows = (
        (member, *_beat(snapshot.members.get(member)), _loaded(applied.get(member), snapshot.taken_at))
        for member in sorted({*applied, *snapshot.members})
    )
    return _table(("fleet", "stage", "in flight", "tokens/s", "newest version"), rows)


def _beat(beat: dict[str, Any] | None) -> tuple[object, object, object]:
    """Stage, samples in flight and tokens a second, as the member said; anyone may have said it."""
    if beat is None:
        return "not heard of", "", ""
    speed = beat.get("tokens_per_second")
    shown = f"{speed:.0f}" if isinstance(speed, int | float) else ""
    return beat.get("stage", "alive"), beat.get("in_flight", ""), shown


def _loaded(applied: WeightsApplied | None, now: datetime) -> str:
    if applied is None:
        return ""
    return f"{applied.outcome.value} {applied.weight_version}, {_ago(applied.applied_at, now)}"


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
    return Group(_shares(snapshot), _table(columns, rows))


def _shares(snapshot: Snapshot) -> Table:
    shares = snapshot.shares
    rows: list[tuple[object, ...]] = []
    if shares is not None:
        excess = ", too many" if shares.total > shares.bound else ""
        rows = [*shares.by_member.items(), ("all", f"{shares.total} of at most {shares.bound}{excess}")]
    return _table(("credit of", "share, groups"), rows)


def _newest(snapshot: Snapshot) -> Table:
    rows = [] if snapshot.published is None else [("version", one_line(snapshot.published))]
    if snapshot.entry is not None:
        rows.append(("ledger", f"{one_line(snapshot.entry)}, {_ago(snapshot.entry.finished_at, snapshot.taken_at)}"))
    return _table(("newest", "record"), rows, is_wrapped=True)


def _topics(snapshot: Snapshot) -> Table:
    rows = (
        (topic.name.removeprefix(f"{snapshot.run}."), topic.num_partitions, topic.replication, topic.num_records)
        for topic in snapshot.topics
    )
    return _table(("topic", "partitions", "replication", "records (at most)"), rows)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]], *, is_wrapped: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold cyan")
    for column in columns:
        table.add_column(column, no_wrap=not is_wrapped, overflow="fold" if is_wrapped else "ellipsis")
    for row in rows:
        table.add_row(*(cell(part) for part in row))
    return table


def _ago(then: datetime, now: datetime) -> str:
    """How long ago `then` was, in the largest unit with a value of at least 2."""
    seconds = max(0.0, (now - then).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
