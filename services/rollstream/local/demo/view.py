"""Shows the loop while it runs: a live table on a terminal, a line every few seconds elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live

from rollstream.local.demo.table import live_table, plain_line
from rollstream.local.demo.watch import LoopState
from rollstream.local.supervisor import Supervisor

_LINE_EVERY_SECONDS = 10.0


class View:
    """A live table, or lines where nothing can be redrawn."""

    def __init__(self, console: Console, supervisor: Supervisor, num_steps: int) -> None:
        self._console = console
        self._supervisor = supervisor
        self._num_steps = num_steps
        self._next_line = 0.0
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: LoopState) -> None:
        """Show where the loop stands."""
        if self._live:
            self._live.update(live_table(state, self._supervisor.statuses(), self._num_steps), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_SECONDS
            self._console.print(plain_line(state, self._num_steps), highlight=False, soft_wrap=True)
