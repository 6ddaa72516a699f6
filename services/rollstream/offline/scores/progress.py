"""How many rows a long command has read, and how many a second, on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

_SHOW_EVERY: Final = 1000


@contextmanager
def rows_shown(doing: str, *, is_shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told of rows; the line disappears at the end of the block."""
    console, began, num_rows, last = Console(stderr=True), monotonic(), 0, 0
    with Live(
        console=console, transient=True, refresh_per_second=4, auto_refresh=is_shown and console.is_terminal
    ) as live:

        def told(more: int) -> None:
            nonlocal num_rows, last
            num_rows += more
            if is_shown and num_rows - last >= _SHOW_EVERY:
                last = num_rows
                live.update(
                    Text(f"{num_rows:,} rows {doing}, {num_rows / max(monotonic() - began, 1e-9):,.0f} a second")
                )

        yield told
