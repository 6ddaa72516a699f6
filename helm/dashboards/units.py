"""Writes values with the units that the dashboards use, about as Grafana does."""

from collections.abc import Sequence
from typing import Final

_SUFFIX: Final = "suffix: "
_SCALES: Final[dict[str, Sequence[tuple[float, str]]]] = {
    "s": ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "h": ((1, "h"), (1 / 60, "min"), (1 / 3600, "s")),
    "bytes": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "percentunit": ((0.01, "%"),),
}
_LARGE: Final = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
"""From so much on the letter is written, with the value divided by the thousands that it stands for."""


def said(unit: str) -> str:
    """The unit for the heading of a panel; empty where the values say it themselves."""
    return unit.removeprefix(_SUFFIX) if unit.startswith(_SUFFIX) else ""


def written(value: float, unit: str) -> str:
    """A value, with its unit unless the heading has it."""
    scales = _SCALES.get(unit, ())
    if value == 0 or not scales:
        return _short(value) + (" %" if unit == "percentunit" else "")
    size, name = next((scale for scale in scales if abs(value) >= scale[0]), scales[-1])
    return f"{_short(value / size)} {name}"


def _short(value: float) -> str:
    for bound, letter in _LARGE:
        if abs(value) >= bound:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[letter]:.3g}{letter}"
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.3g}"
