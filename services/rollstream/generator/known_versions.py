"""What a generator knows of the published weight versions: their parents, the newest, and the recent records. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rollstream.schemas.weights import WeightsPublished

# A generator loads the newest version or one of its near ancestors: older records are hardly ever asked for.
_RECENT: Final = 256
# A generator goes on for months. It is never that far behind, and no rollback goes back that far.
_MOST_LINKS: Final = 50_000


@dataclass(frozen=True, slots=True)
class _ParentAndStep:
    parent: int | None
    step: int


class KnownVersions:
    """Built from the records of `weights`: newer ones in their order, older ones when they are asked for.

    The last record is the newest version. After a rollback it can have a lower step than one before it.

    Anybody may have written a record. A parent that is not smaller than its child is taken for unknown: so every walk
    from parent to parent ends, even if records name each other.
    """

    def __init__(self) -> None:
        self._links: dict[int, _ParentAndStep] = {}
        self._records: dict[int, WeightsPublished] = {}
        self.newest: int | None = None

    def note(self, published: WeightsPublished) -> None:
        version = published.weight_version
        for known in (self._links, self._records):
            known.pop(version, None)  # a version that comes again is the last one now
        self._links[version], self._records[version] = _link(published), published
        while len(self._records) > _RECENT:
            del self._records[next(iter(self._records))]
        while len(self._links) > _MOST_LINKS:
            del self._links[next(iter(self._links))]
        self.newest = version

    def note_older(self, records: Sequence[WeightsPublished]) -> None:
        """Add records from before all that are known, oldest first. They are kept until the next newer one comes."""
        older = {record.weight_version: record for record in records}
        self._links = {version: _link(record) for version, record in older.items()} | self._links
        self._records = older | self._records
        if self.newest is None and records:
            self.newest = records[-1].weight_version

    def forget_orphan(self, version: int) -> bool:
        """Forget the newest version if its parent is unknown and there is another one; whether that was so.

        A trainer's versions all have a known parent, but for the first one. Without it nothing tells how far any other
        version is behind, and a record that no trainer wrote would stop the generators.
        """
        if version != self.newest or self.parent(version) in self._links or len(self._records) < 2:
            return False
        del self._records[version], self._links[version]
        self.newest = next(reversed(self._records))
        return True

    def knows(self, version: int) -> bool:
        """Whether a record of `version` was read."""
        return version in self._links

    def record(self, version: int) -> WeightsPublished | None:
        """The record of `version`; None if it was not read, or is not kept any more."""
        return self._records.get(version)

    def parent(self, version: int) -> int | None:
        """The version that this one was trained or restored from; None if it has none, or none is known."""
        link = self._links.get(version)
        return None if link is None else link.parent

    def behind(self, version: int) -> int | None:
        """Optimizer steps between `version` and the newest version; None if no path between them is known.

        A version that a restart or a rollback published has the step of its parent: no optimizer step lies between.
        """
        if self.newest is None:
            return None
        one, other, num_steps = version, self.newest, 0
        while one != other:
            # A parent's number is below its child's, so going up from the larger one ends at the common ancestor.
            if one < other:
                one, other = other, one
            parent = self.parent(one)
            if parent is None or parent not in self._links:
                return None
            num_steps += self._links[one].step > self._links[parent].step
            one = parent
        return num_steps if one in self._links else None


def _link(published: WeightsPublished) -> _ParentAndStep:
    version, parent = published.weight_version, published.parent_version
    return _ParentAndStep(parent if parent is not None and parent < version else None, published.step)
