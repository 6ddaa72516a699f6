"""Shows the figures of a collection while it runs: a progress bar on a terminal, else a log line now and then."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Final

from rollstream.offline.figures import Figures

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 10.0


async def show_while_it_runs(figures: Figures, look: Callable[[], None]) -> None:
    """Until cancelled: call `look` several times a second, and show the figures."""
    if sys.stderr.isatty():
        await _bar(figures, look)
    else:
        await _lines(figures, look)


async def _lines(figures: Figures, look: Callable[[], None]) -> None:
    shown = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        look()
        if time.monotonic() - shown >= _LINE_SECONDS:
            shown = time.monotonic()
            _LOG.info("%s", figures.line())


async def _bar(figures: Figures, look: Callable[[], None]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # On a narrow terminal the figures take several lines, and none is left out.
    all_figures = TextColumn("{task.fields[figures]}", table_column=Column(ratio=1), markup=False)
    columns = (BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f}%"), all_figures)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, refresh_per_second=5, expand=True) as progress:
        bar = progress.add_task("", total=figures.num_samples, figures="")
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            look()
            done = figures.num_earlier + figures.num_ended
            progress.update(bar, completed=done, total=figures.num_samples, figures=figures.line())
