"""Whether a soak held: what must not grow with the age of a run did not. Pure: samples and starts in, verdicts out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.soak.samples import KEPT_FOR_EVER, Figures, Sample, Start

_FLAT: Final = 1.1
"""Most growth of memory and handles, from the second tenth of the steps to the last."""
_BOUNDED: Final = 1.25
"""Most growth of the disk at the same pace: how much is kept varies with the moment at which segments end."""
_START: Final = 1.2
_SPARE_HANDLES: Final = 4
_LONG_LIFE: Final = 0.3


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

    Of a process that was started again its longest life is compared in the same way too. `settled_seconds`: from when
    on as much expires as is written. The disk before that says nothing: it is compared with the tenth of the steps
    that follows. A run that makes more steps in the time for which records are kept may keep as much more.
    """
    last = max((sample.step for sample in samples), default=0)
    settled = [sample for sample in samples if sample.seconds >= settled_seconds and sample.step >= last * 0.1]
    first = settled[0].step if settled else last
    disk_early = [sample for sample in settled if first <= sample.step < min(first + last * 0.1, last * 0.9)]
    late = [sample for sample in samples if sample.step >= last * 0.9]
    found = [
        *_flat("memory", ", MiB", samples, lambda sample: sample.memory_mib, lambda early: _FLAT * early),
        *_flat("handles", "", samples, lambda sample: sample.handles, lambda early: _FLAT * early + _SPARE_HANDLES),
    ]
    faster = max(1.0, _pace(samples, late, settled_seconds) / _pace(samples, disk_early, settled_seconds))
    found += [
        Verdict(what=f"disk of {name}, MiB", early=early, late=then, most=_BOUNDED * faster * early)
        for name, early, then in _compared(disk_early, late, lambda sample: sample.disk_mib)
        if name != KEPT_FOR_EVER
    ]
    return found + list(_starts(starts, last))


def _flat(
    what: str, unit: str, samples: Sequence[Sample], of: Figures, most: Callable[[float], float]
) -> Iterable[Verdict]:
    """Each process over all steps, and the longest life of each that had several."""
    for name, early, late in _compared(*_tenths(samples), of):
        yield Verdict(what=f"{what} of {name}{unit}", early=early, late=late, most=most(early))
    for name in sorted({name for sample in samples for name in sample.pids}):
        lives: dict[int, list[Sample]] = {}
        for sample in samples:
            if name in sample.pids:
                lives.setdefault(sample.pids[name], []).append(sample)
        longest = max(lives.values(), key=_num_steps)
        if len(lives) > 1 and _num_steps(longest) >= _LONG_LIFE * _num_steps(samples):
            for same, early, late in _compared(*_tenths(longest), of):
                if same == name:
                    yield Verdict(
                        what=f"{what} of {name} in its longest life{unit}", early=early, late=late, most=most(early)
                    )


def _pace(samples: Sequence[Sample], some: Sequence[Sample], seconds: float) -> float:
    """Steps that were made in the `seconds` before one of `some`: their median, at least 1."""
    steps = [
        sample.step - max((one.step for one in samples if one.seconds <= sample.seconds - seconds), default=0)
        for sample in some
    ]
    return float(max(median(steps), 1)) if steps else 1.0


def _num_steps(samples: Sequence[Sample]) -> int:
    return samples[-1].step - samples[0].step if samples else 0


def _tenths(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The samples of the second tenth of the steps, and of the last."""
    first = samples[0].step if samples else 0
    tenth = _num_steps(samples) / 10
    early = [sample for sample in samples if tenth <= sample.step - first < 2 * tenth]
    return early, [sample for sample in samples if sample.step - first >= 9 * tenth]


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


def unjudged(found: Sequence[Verdict]) -> list[str]:
    """What has no verdict, because the soak was too short for it."""
    return [what for what in ("memory", "handles", "disk", "start") if not any(v.what.startswith(what) for v in found)]
