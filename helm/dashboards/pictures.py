"""Draws one picture for each dashboard from what a Prometheus answers: `python -m helm.dashboards.pictures URL`.

Each panel asks what it asks in Grafana, over the time in which the run was scraped.
"""

import io
import json
import time
from pathlib import Path
from typing import Any, Final

import click

from helm.dashboards.answers import Prometheus, Span, choices, put_in, runs
from helm.dashboards.build import BOARDS, path_of
from helm.dashboards.drawing import Answered, draw_panel

FOLDER: Final = Path(__file__).parents[1] / "pictures"
MOST_BYTES: Final = 150_000
_POINTS: Final = 150
_INCHES_A_COLUMN, _INCHES_A_ROW = 0.52, 0.215
_DPI: Final = 90
_COLORS_IN_FILE: Final = 64
_LOOK_BACK_SECONDS: Final = 6 * 3600.0
_USUAL_SCRAPE_SECONDS: Final = 15.0
"""Of a run whose processes Prometheus no longer looks for."""


@click.command()
@click.argument("url")
@click.option("--run", help="Which run.  [default: the only one]")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER, show_default=True)
def main(url: str, run: str | None, folder: Path) -> None:
    """Draw the dashboards of a run that the Prometheus at URL has scraped within the past six hours."""
    prometheus = Prometheus(url)
    now = time.time()
    wide = Span(start=now - _LOOK_BACK_SECONDS, end=now, step=_LOOK_BACK_SECONDS / 1000, scrape=1.0)
    found = [run] if run else runs(board_of("overview"), prometheus, wide)
    if len(found) != 1:
        raise click.ClickException(f"choose one with --run: there are {', '.join(found) or 'none'}")
    span = time_of(prometheus, found[0], wide)
    folder.mkdir(parents=True, exist_ok=True)
    for name in BOARDS:
        content = picture(board_of(name), prometheus, span, found[0])
        picture_path(name, folder).write_bytes(content)
        click.echo(f"{picture_path(name, folder)}: {len(content)} bytes")


def picture_path(name: str, folder: Path = FOLDER) -> Path:
    """Where the picture of a dashboard lies."""
    return folder / f"rollstream-{name}.png"


def board_of(name: str) -> dict[str, Any]:
    """The dashboard as Grafana gets it."""
    board: dict[str, Any] = json.loads(path_of(name).read_text(encoding="utf-8"))
    return board


def time_of(prometheus: Prometheus, run: str, wide: Span) -> Span:
    """From the first to the last moment at which a process of the run answered a scrape."""
    up = f'up{{run="{run}"}}'
    # Moments of scrapes: for minutes after the last one Prometheus still answers with what it brought.
    scraped = prometheus.over_time(f"timestamp({up}) and {up} == 1", wide)
    moments = [scraped_at for series in scraped for _, scraped_at in series.points]
    if not moments:
        raise click.ClickException(f"no process of {run} answered a scrape")
    targets = prometheus.ask("targets", state="active")["activeTargets"]
    scrapes = [_seconds(target["scrapeInterval"]) for target in targets if target["labels"].get("run") == run]
    scrape = max(scrapes, default=_USUAL_SCRAPE_SECONDS)
    start, end = min(moments), max(moments)
    return Span(start=start, end=end, step=max(scrape, (end - start) / _POINTS), scrape=scrape)


def _seconds(duration: str) -> float:
    import promql_parser

    return float(promql_parser.parse_duration(duration).total_seconds())


def picture(board: dict[str, Any], prometheus: Prometheus, span: Span, run: str) -> bytes:
    """The dashboard as a PNG."""
    import matplotlib

    # A backend that needs no screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = choices(board, prometheus, span, run=run)
    marks = _marks(board, prometheus, span, values)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 1
    figure = pyplot.figure(figsize=(24 * _INCHES_A_COLUMN, rows * _INCHES_A_ROW))
    figure.text(0.006, 1 - 0.65 / rows, f"{board['title']}: run {run}, minutes", fontsize=10, fontweight="bold")
    for panel in board["panels"]:
        place = panel["gridPos"]
        if panel["type"] == "row":
            figure.text(0.006, 1 - (place["y"] + 1.8) / rows, panel["title"], fontsize=9, color="#555555")
            continue
        axes = figure.add_axes(_rectangle(place, rows))
        if draw_panel(axes, panel, _answered(panel, prometheus, span, values), span.start):
            axes.set_xlim(0, (span.end - span.start) / 60)
            for minute, color in marks:
                axes.axvline(minute, color=color, linewidth=0.6, linestyle=":")
    content = io.BytesIO()
    figure.savefig(content, dpi=_DPI)
    pyplot.close(figure)
    return _smaller(content)


def _rectangle(place: dict[str, int], rows: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of a panel's axes within the picture, with room for its title and scales."""
    left, right, top, bottom = 0.85, 0.2, 2.0, 1.1
    if place["h"] <= 4:
        top, bottom = 2.0, 0.3
    return (
        (place["x"] + left) / 24,
        1 - (place["y"] + 1 + place["h"] - bottom) / rows,
        (place["w"] - left - right) / 24,
        (place["h"] - top - bottom + 0.6) / rows,
    )


def _answered(panel: dict[str, Any], prometheus: Prometheus, span: Span, values: dict[str, str]) -> list[Answered]:
    return [
        Answered(legend=target["legendFormat"], series=prometheus.over_time(put_in(target["expr"], values), span))
        for target in panel.get("targets", [])
    ]


def _marks(
    board: dict[str, Any], prometheus: Prometheus, span: Span, values: dict[str, str]
) -> list[tuple[float, str]]:
    """Minute and color of each annotation that is shown: of its first point where it has several in a row."""
    marks = []
    for mark in board["annotations"]["list"]:
        for series in prometheus.over_time(put_in(mark["expr"], values), span) if mark["enable"] else ():
            before = -span.step
            for moment, _ in series.points:
                if moment - before > 1.5 * span.step:
                    marks.append(((moment - span.start) / 60, mark["iconColor"]))
                before = moment
    return marks


def _smaller(content: io.BytesIO) -> bytes:
    """The same picture with a palette."""
    from PIL import Image

    reduced = io.BytesIO()
    Image.open(content).convert("RGB").quantize(_COLORS_IN_FILE, dither=Image.Dither.NONE).save(
        reduced, "PNG", optimize=True
    )
    return reduced.getvalue()


if __name__ == "__main__":
    main()
