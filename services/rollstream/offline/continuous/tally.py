"""How many samples of the parts that a process collected have a response, for its exit code."""

from collections import OrderedDict
from pathlib import Path
from typing import Final

from rollstream.offline.collection import CollectReport

_MOST_OPEN: Final = 1000


class Tally:
    """Counts samples by the newest report on each part. The older of many parts are kept as sums alone."""

    def __init__(self) -> None:
        self._newest: OrderedDict[Path, tuple[int, int]] = OrderedDict()
        self._num_samples, self._num_completed = 0, 0

    def __contains__(self, output: Path) -> bool:
        return output in self._newest

    def see(self, output: Path, report: CollectReport) -> None:
        """What became of a part."""
        summary = report.summary
        found = (0, 0) if summary is None else (summary.num_samples, summary.num_completed)
        before = self._newest.pop(output, (0, 0))
        self._newest[output] = found if summary is not None else before
        self._num_samples += self._newest[output][0] - before[0]
        self._num_completed += self._newest[output][1] - before[1]
        while len(self._newest) > _MOST_OPEN:
            self._newest.popitem(last=False)

    @property
    def share_failed(self) -> float:
        """Of the samples, those without a response; 0 without samples."""
        return (self._num_samples - self._num_completed) / self._num_samples if self._num_samples else 0.0
