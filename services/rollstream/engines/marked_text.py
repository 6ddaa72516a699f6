"""Text of which each character is known to be a template's own or from outside, through all that templates do to text.

A chat template mixes both: it strips a message's content, splits it at `</think>`, puts a role between two control
tokens. `Marked` is a `str`, so templates can look into it and compare it. A plain `str` is wholly from outside. So is
what a method gives that is not among those below: text is never taken for a template's own by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, SupportsIndex

_RUNS: Final = re.compile(rb"\x00+|\x01+")


class Marked(str):
    """Text [N] with its origin: `own` holds a byte a character, 1 for a template's own. Without it all is outside."""

    __slots__ = ("own",)
    own: bytes

    def __new__(cls, text: str = "", own: bytes | None = None) -> Marked:
        made = super().__new__(cls, text)
        made.own = bytes(len(made)) if own is None else own
        return made

    def runs(self) -> Iterator[tuple[str, bool]]:
        """The text in pieces, each with whether it is a template's own."""
        for run in _RUNS.finditer(self.own):
            yield str.__getitem__(self, slice(*run.span())), run[0][0] == 1

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Marked:
        return Marked(super().__add__(other), self.own + _origin(other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Marked:
        return Marked(str.__add__(other, self), _origin(other) + self.own) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Marked:
        return Marked(super().__mul__(count), self.own * count)

    __rmul__ = __mul__

    def __getitem__(self, index: SupportsIndex | slice) -> Marked:
        own = self.own[index] if isinstance(index, slice) else bytes([self.own[index]])
        return Marked(super().__getitem__(index), own)

    def __iter__(self) -> Iterator[Marked]:
        return (self[index] for index in range(len(self)))

    def lstrip(self, chars: str | None = None, /) -> Marked:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> Marked:
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None, /) -> Marked:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str, /) -> Marked:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> Marked:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Marked]:  # type: ignore[override]
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Marked]:  # type: ignore[override]
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Marked]:  # type: ignore[override]
        lines = super().splitlines(keepends=True)
        ends = accumulate(map(len, lines))
        whole = [self[end - len(line) : end] for line, end in zip(lines, ends, strict=True)]
        return whole if keepends else [line[: len(str.splitlines(line)[0])] for line in whole]

    def partition(self, sep: str, /) -> tuple[Marked, Marked, Marked]:
        return self._parted(super().partition(sep))

    def rpartition(self, sep: str, /) -> tuple[Marked, Marked, Marked]:
        return self._parted(super().rpartition(sep))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return joined((new,)).join(self.split(old, count)) if old else super().replace(old, new, count)

    def join(self, parts: Iterable[str], /) -> Marked:
        between: list[str] = []
        for part in parts:
            between += (self, part)
        return joined(between[1:])

    def upper(self) -> str:
        return self._recased(super().upper())

    def lower(self) -> str:
        return self._recased(super().lower())

    def title(self) -> str:
        return self._recased(super().title())

    def capitalize(self) -> str:
        return self._recased(super().capitalize())

    def _recased(self, text: str) -> str:
        """A few characters have another number of letters in the other case: then the origin is lost."""
        return Marked(text, self.own) if len(text) == len(self) else text

    def _parted(self, parts: tuple[str, str, str]) -> tuple[Marked, Marked, Marked]:
        first, second = len(parts[0]), len(parts[0]) + len(parts[1])
        return self[:first], self[first:second], self[second:]

    def _pieces(self, parts: list[str], separator: str | None) -> list[Marked]:
        """`parts` of this text, in their order, with their origin."""
        pieces, start = [], 0
        for part in parts:
            # Between words is any white space, of which a part has none at its beginning.
            start = start if separator is not None else self.find(part, start)
            pieces.append(self[start : start + len(part)])
            start += len(part) + len(separator or "")
        return pieces


@lru_cache(maxsize=4096)
def own(text: str) -> Marked:
    """`text` as a template's own."""
    return Marked(text, b"\x01" * len(text))


def joined(parts: Iterable[Any]) -> Marked:
    """All parts one after another; what is no text is written as text."""
    texts = [str(part) for part in parts]
    return Marked("".join(texts), b"".join(map(_origin, texts)))


def _origin(text: str) -> bytes:
    return text.own if isinstance(text, Marked) else bytes(len(text))
