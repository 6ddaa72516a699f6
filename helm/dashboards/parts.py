"""What all dashboards are made of: panels, rows, variables, links and annotations, all with one set of conventions."""

import zlib
from collections.abc import Sequence
from typing import Final, TypeAlias

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, text, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

Panel: TypeAlias = timeseries.Panel | stat.Panel | heatmap.Panel | text.Panel

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "rollstream"
RUN: Final = 'run="$run"'
"""The matcher that every query has."""


class Row:
    """A heading and its panels, which fill the width from left to right."""

    def __init__(self, title: str, *panels: Panel) -> None:
        self.title, self.panels = title, panels


def query(expr: str, legend: str = "") -> prometheus.Dataquery:
    """One expression over the time of the dashboard; `legend` names its series by their labels."""
    return prometheus.Dataquery().expr(expr).legend_format(legend or "__auto").range()


def rate(counter: str, by: str = "", *, matchers: str = RUN) -> str:
    """How fast a counter grows, a second: in sum, or by these labels."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({counter}{{{matchers}}}[$__rate_interval]))"


def rates(counter: str, *labels: str, matchers: str = RUN) -> prometheus.Dataquery:
    """How fast a counter grows, a second, by these labels, which also name the series."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return query(rate(counter, ", ".join(labels), matchers=matchers), legend)


def percentiles(histogram: str, *, matchers: str = RUN) -> list[prometheus.Dataquery]:
    """Median and 95th percentile of what a histogram has counted lately."""
    counted = rate(f"{histogram}_bucket", "le", matchers=matchers)
    shares = ((0.5, "median"), (0.95, "95th percentile"))
    return [query(f"histogram_quantile({share}, {counted})", legend) for share, legend in shares]


def lines(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, width: int = 8, stacked: bool = False
) -> timeseries.Panel:
    """Lines over time, or areas on top of each other."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    for number, one in enumerate(queries):
        panel = panel.with_target(one.ref_id(chr(ord("A") + number)))
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = panel.legend(legend.show_legend(True)).tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30).min(0)
    return panel.span(width).height(8)


def number(
    title: str, description: str, unit: str, expr: str, *, bad_from: float | None = None, width: int = 4
) -> stat.Panel:
    """The newest value; from `bad_from` on it is red."""
    steps = [Threshold(value=None, color="green")]
    if bad_from is not None:
        steps.append(Threshold(value=bad_from, color="red"))
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .with_target(query(expr).ref_id("A"))
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .span(width)
        .height(4)
    )


def buckets(
    title: str, description: str, unit: str, histogram: str, *, matchers: str = RUN, width: int = 8
) -> heatmap.Panel:
    """How the values of a histogram are distributed over time."""
    expr = f"sum by (le) (increase({histogram}_bucket{{{matchers}}}[$__rate_interval]))"
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(SOURCE)
        .with_target(query(expr, "{{le}}").format(PromQueryFormat.HEATMAP).ref_id("A"))
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .span(width)
        .height(8)
    )


def words(title: str, markdown: str, *, width: int = 8, height: int = 8) -> text.Panel:
    """Text for people, such as commands that show what no metric can."""
    panel = text.Panel().title(title).description("What to run to see more.").mode(TextMode.MARKDOWN)
    return panel.content(markdown).span(width).height(height)


def board(
    name: str,
    title: str,
    description: str,
    rows: Sequence[Row],
    *,
    more_variables: Sequence[dashboard.QueryVariable] = (),
) -> dashboard.Dashboard:
    """A dashboard with the variables, links and annotations that all have."""
    uid = f"rollstream-{name}"
    made = (
        dashboard.Dashboard(f"rollstream / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .time("now-6h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .variables([_source_variable(), variable("run", "Run", 'label_values(up{run!=""}, run)'), *more_variables])
        .annotations(_annotations())
        .link(_to_the_others())
    )
    for row in rows:
        made = made.with_row(dashboard.Row(row.title).id(_panel_id(uid, row.title)))
        for panel in row.panels:
            made = made.with_panel(panel.id(_panel_id(uid, panel.build().title or "")))
    return made


def variable(name: str, label: str, values: str, *, multi: bool = False) -> dashboard.QueryVariable:
    """A choice among the values that Prometheus has; with `multi` several or all."""
    made = dashboard.QueryVariable(name).label(label).query(values).datasource(SOURCE)
    made = made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return made.multi(True).include_all(True).all_value(".+") if multi else made.multi(False)


def _source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _to_the_others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("rollstream").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.include_vars(True).keep_time(True).as_dropdown(False)


def _annotations() -> list[Builder[AnnotationQuery]]:
    behind = (
        f"max by (run) (max_over_time(rollstream_trainer_step{{{RUN}}}[1h]))"
        f" - max by (run) (rollstream_trainer_step{{{RUN}}} > 0) > 0"
    )
    versions = f"changes(rollstream_trainer_weight_version{{{RUN}}}[$__rate_interval]) > 0"
    return [
        _annotation("Process started", f"time() - process_start_time_seconds{{{RUN}}} < 120", "blue"),
        _annotation("Steps cut by a rollback or restart", behind, "red"),
        # One for each step: only for those who ask.
        _annotation("Weight version published", versions, "green").enable(False),
    ]


def _annotation(name: str, expr: str, color: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).datasource(SOURCE).expr(expr).icon_color(color).enable(True)


def _panel_id(uid: str, title: str) -> int:
    """The same for as long as the panel has its title, wherever it stands."""
    return zlib.crc32(f"{uid}/{title}".encode()) & 0x7FFFFFFF
