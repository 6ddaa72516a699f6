"""What a generator knows of the published weight versions: their tree, the newest, and the recent records. Pure."""

from rollstream.history.versions import VersionTree
from rollstream.schemas.weights import WeightsPublished

# A generator loads the newest version or one of its near ancestors: older records are never asked for.
_RECENT = 64


class KnownVersions:
    """Built from the records of `weights` in their order, oldest first. The last record is the newest version.

    After a rollback the newest version can have a lower step than one before it.
    """

    def __init__(self) -> None:
        self._tree = VersionTree()
        self._steps: dict[int, int] = {}
        self._recent: dict[int, WeightsPublished] = {}
        self.newest: int | None = None

    def note(self, published: WeightsPublished) -> None:
        """Add the next record."""
        version, parent = published.weight_version, published.parent_version
        # The first version has no parent, and the record of a parent may have been unreadable.
        known_parent = parent if parent in self._tree else None
        # A version that a restart or a rollback published has the step of its parent: no optimizer step lies between.
        is_step = known_parent is not None and published.step > self._steps[known_parent]
        self._tree.add(version, known_parent, is_step=is_step)
        self._steps[version] = published.step
        self._recent[version] = published
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self.newest = version

    def record(self, version: int) -> WeightsPublished | None:
        """The record of `version`; None if it is not among the recent ones."""
        return self._recent.get(version)

    def ancestry(self, version: int) -> list[WeightsPublished]:
        """`version` and its recent ancestors, newest first: the order in which a starting generator tries them."""
        found = []
        current: int | None = version
        while current is not None and current in self._recent:
            found.append(self._recent[current])
            current = self._tree.parent(current)
        return found

    def behind(self, version: int) -> int | None:
        """Optimizer steps between `version` and the newest version; None if no path between them is known."""
        return None if self.newest is None else self._tree.lag(version, self.newest)
