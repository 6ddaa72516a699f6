"""What a generator knows of the published versions: their tree, the newest, and the recent records. Pure."""

from rollstream.history.versions import VersionTree
from rollstream.schemas.weights import WeightsPublished

_RECENT = 64


class KnownVersions:
    """Folded from `weights`, oldest first; the newest record counts."""

    def __init__(self) -> None:
        self._tree = VersionTree()
        self._steps: dict[int, int] = {}
        self._recent: dict[int, WeightsPublished] = {}
        self.newest: int | None = None

    def note(self, published: WeightsPublished) -> None:
        """Fold in the next record."""
        version, parent = published.weight_version, published.parent_version
        known_parent = parent if parent in self._tree else None
        is_step = known_parent is not None and published.step > self._steps[known_parent]
        self._tree.add(version, known_parent, is_step=is_step)
        self._steps[version] = published.step
        self._recent[version] = published
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self.newest = version

    def record(self, version: int) -> WeightsPublished | None:
        """The record of a recent version."""
        return self._recent.get(version)

    def ancestry(self, version: int) -> list[WeightsPublished]:
        """`version` and its recent ancestors, youngest first: what a joiner tries in turn."""
        found = []
        current: int | None = version
        while current is not None and current in self._recent:
            found.append(self._recent[current])
            current = self._tree.parent(current)
        return found

    def behind(self, version: int) -> int | None:
        """Optimizer steps between `version` and the newest; None if there is no path."""
        return None if self.newest is None else self._tree.lag(version, self.newest)
