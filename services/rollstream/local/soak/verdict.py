"""Whether a soak held: what must not grow with the age of a run did not. Pure: samples and starts in, verdicts out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rollstream.local.soak.samples import Sample, Start

_FLAT: Final = 1.1
"""Most growth of memory and handles, from the second tenth of the steps to the last."""
_BOUNDED: Final = 1.25
"""Most growth of the disk of topics that expire: how much is kept varies with the moment at which segments end."""
_START: Final = 1.2
_SPARE_HANDLES: Final = 4

Figures = Callable[[Sample], Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One thing that must not grow: its figure early and late."""

    what: str
    early: float
    late: float
    most: float

    @property
    def holds(self) -> bool:
        """Whether the late figure is within its bound."""
        return self.late <= self.most


def verdicts(samples: Sequence[Sample], starts: Sequence[Start], *, settled_seconds: float = 0.0) -> list[Verdict]:
    """Compare the last tenth of the steps with the second tenth. A process needs samples of both to have a verdict.

    `settled_seconds`: from when on topics expire as fast as they grow; the disk before that says nothing.
    """
    last = max((sample.step for sample in samples), default=0)
    early = [sample for sample in samples if last * 0.1 <= sample.step < last * 0.2]
    late = [sample for sample in samples if sample.step >= last * 0.9]
    settled = [sample for sample in early if sample.seconds >= settled_seconds]
    found = [
        Verdict(what=f"memory of {name}, MiB", early=first, late=then, most=_FLAT * first)
        for name, first, then in _compared(early, late, lambda sample: sample.memory_mib)
    ]
    found += [
        Verdict(what=f"handles of {name}", early=first, late=then, most=_FLAT * first + _SPARE_HANDLES)
        for name, first, then in _compared(early, late, lambda sample: sample.handles)
    ]
    found += [
        Verdict(what=f"disk of {name}, MiB", early=first, late=then, most=_BOUNDED * first)
        for name, first, then in _compared(settled, late, lambda sample: sample.disk_mib)
        if name != "weights and ledger"
    ]
    return found + list(_starts(starts, last))


def _compared(early: Iterable[Sample], late: Iterable[Sample], of: Figures) -> Iterable[tuple[str, float, float]]:
    first, then = _medians(early, of), _medians(late, of)
    return ((name, first[name], then[name]) for name in sorted(first.keys() & then.keys()))


def _medians(samples: Iterable[Sample], of: Figures) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in of(sample).items():
            values.setdefault(name, []).append(value)
    return {name: median(found) for name, found in values.items()}


def _starts(starts: Sequence[Start], last: int) -> Iterable[Verdict]:
    for stage in sorted({start.stage for start in starts}):
        early = [start.seconds for start in starts if start.stage == stage and last * 0.05 <= start.step < last * 0.25]
        late = [start.seconds for start in starts if start.stage == stage and start.step >= last * 0.8]
        if early and late:
            first = median(early)
            yield Verdict(what=f"start of the {stage}, seconds", early=first, late=median(late), most=_START * first)
