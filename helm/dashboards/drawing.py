"""Draws the panels of a dashboard from what Prometheus answered, each into axes of its own."""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from helm.dashboards.answers import Series
from helm.dashboards.units import said, written

_MOST_IN_LEGEND: Final = 8
_COLORS: Final = (
    "#3274d9", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#b5a300", "#1f8a99", "#d44a8c", "#70757a", "#7a4a1c"
)  # fmt: skip
_GREY: Final = "#70757a"
_TITLE, _SMALL = 8.0, 6.5
"""Sizes of letters."""
_NARROW: Final = 4
_LETTERS_A_COLUMN: Final = 9
"""How many small letters fit into a column of the dashboard, which has 24."""
_GOOD, _BAD = "#37872d", "#c4162a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one target of a panel has brought: how its series are named, and the series."""

    legend: str
    series: Sequence[Series]


def draw_panel(axes: Any, panel: dict[str, Any], answers: Sequence[Answered], start: float) -> bool:
    """Draw one panel; whether it then has an axis of time. `start`: when the picture begins, Unix seconds."""
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    unit = defaults.get("unit", "none")
    heading = f"{panel['title']} [{said(unit)}]" if said(unit) else panel["title"]
    is_narrow = panel["gridPos"]["w"] <= _NARROW
    axes.set_title(heading, fontsize=_SMALL if is_narrow else _TITLE, loc="left", fontweight="bold", pad=4)
    draw = {"timeseries": _lines, "heatmap": _buckets, "stat": _number, "text": _text}[panel["type"]]
    if not any(one.series for one in answers) and panel["type"] != "text":
        _no_data(axes)
        return False
    draw(axes, panel, answers, unit, start)
    return panel["type"] in ("timeseries", "heatmap")


def _lines(axes: Any, panel: dict[str, Any], answers: Sequence[Answered], unit: str, start: float) -> None:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    is_stacked = custom.get("stacking", {}).get("mode") == "normal"
    named = [(_name(one.legend, series), series) for one in answers for series in one.series]
    (_areas if is_stacked else _curves)(axes, named, start)
    _frame(axes, unit, is_never_negative=all(value >= 0 for _, series in named for _, value in series.points))
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:_MOST_IN_LEGEND], names[:_MOST_IN_LEGEND], fontsize=_SMALL, loc="upper left", frameon=True,
        framealpha=0.6, borderpad=0.1, labelspacing=0.1, handlelength=1.0, edgecolor="none",
    )  # fmt: skip


def _curves(axes: Any, named: Sequence[tuple[str, Series]], start: float) -> None:
    for number, (name, series) in enumerate(named):
        minutes = [(moment - start) / 60 for moment, _ in series.points]
        is_alone = len(minutes) == 1
        axes.plot(
            minutes, [value for _, value in series.points], label=name, linewidth=0.9,
            color=_COLORS[number % len(_COLORS)], marker="." if is_alone else None, markersize=3,
        )  # fmt: skip


def _areas(axes: Any, named: Sequence[tuple[str, Series]], start: float) -> None:
    moments = sorted({moment for _, series in named for moment, _ in series.points})
    given = [dict(series.points) for _, series in named]
    values = [[points.get(moment, 0.0) for moment in moments] for points in given]
    minutes = [(moment - start) / 60 for moment in moments]
    axes.stackplot(minutes, *values, labels=[name for name, _ in named], colors=_COLORS, alpha=0.6, linewidth=0)


def _buckets(axes: Any, panel: dict[str, Any], answers: Sequence[Answered], unit: str, start: float) -> None:
    import numpy as np

    found = {_bound(series): dict(series.points) for one in answers for series in one.series}
    bounds = sorted(found)
    moments = sorted({moment for points in found.values() for moment in points})
    below = np.array([[found[bound].get(moment, 0.0) for moment in moments] for bound in bounds])
    counts = np.diff(below, axis=0, prepend=0.0)
    filled = np.flatnonzero(counts.sum(axis=1) > 0)
    kept = range(int(filled[0]), int(filled[-1]) + 1) if len(filled) else range(len(bounds))
    shown = counts[kept.start : kept.stop]
    image = np.where(shown > 0, shown, np.nan)
    edges = [(moment - start) / 60 for moment in moments]
    width = min(np.diff(edges), default=1.0)
    axes.pcolormesh([edges[0] - width, *edges], np.arange(len(kept) + 1), image, cmap="Oranges", vmin=0.0)
    axes.set_yticks(np.arange(len(kept)) + 1, [_edge(bounds[row], unit) for row in kept])
    axes.tick_params(labelsize=_SMALL, length=2)


def _bound(series: Series) -> float:
    return float(series.labels["le"])


def _edge(bound: float, unit: str) -> str:
    return "more" if bound == float("inf") else written(bound, unit)


def _number(axes: Any, panel: dict[str, Any], answers: Sequence[Answered], unit: str, start: float) -> None:
    points = [series.points for one in answers for series in one.series]
    axes.set_axis_off()
    newest = points[0][-1][1]
    red = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"] if step["color"] == "red"]
    color = _BAD if red and newest >= red[0] else _GOOD
    axes.plot(
        [moment for moment, _ in points[0]], [value for _, value in points[0]], color=color, linewidth=0.8, alpha=0.25
    )
    axes.text(
        0.5, 0.5, written(newest, unit), ha="center", va="center", fontsize=16, color=color, transform=axes.transAxes
    )


def _text(axes: Any, panel: dict[str, Any], answers: Sequence[Answered], unit: str, start: float) -> None:
    axes.set_axis_off()
    content = re.sub(r"```\n?|`", "", panel["options"]["content"])
    width = _LETTERS_A_COLUMN * panel["gridPos"]["w"]
    wrapped = "\n".join(textwrap.fill(line, width) for line in content.splitlines())
    axes.text(0.0, 0.97, wrapped, ha="left", va="top", fontsize=_SMALL, color="#444444", transform=axes.transAxes)


def _no_data(axes: Any) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=8, color=_GREY, transform=axes.transAxes)


def _frame(axes: Any, unit: str, *, is_never_negative: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    if is_never_negative:
        # Above is room for the legend, which stands inside; below for a line of zeros.
        top = 1.35 * axes.get_ylim()[1] if axes.dataLim.y1 > 0 else 1.0
        axes.set_ylim(-0.02 * top, top)
    size = max(1.0, axes.get_ylim()[1] / 4)
    powers = MultipleLocator(2.0 ** math.ceil(math.log2(size)))
    axes.yaxis.set_major_locator(powers if unit == "bytes" else MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, unit)))
    axes.tick_params(labelsize=_SMALL, length=2)
    axes.grid(alpha=0.25, linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _name(legend: str, series: Series) -> str:
    """The name of a series as the legend's text says it, `{{label}}` being the label's value."""
    if legend == "__auto":
        return " ".join(
            value for name, value in sorted(series.labels.items()) if name not in ("__name__", "run", "job")
        )
    return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), legend).strip()
