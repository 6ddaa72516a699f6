"""Which tasks a pass over the source poses, by how hard they were the last time. Pure.

The ledger says the mean reward of each closed group. It puts the group's task into a pool: the first whose `up_to` is
not below the mean. When a pass begins, the pools are fixed for it. Of a pool with the weight w, each task is posed with
the probability w divided by the largest weight among the pools that have tasks. So a pass poses at least all tasks of
one pool: it is never empty, and nothing is searched for twice.

What is drawn follows from the seed, the epoch and the task, not from its row. A producer that was killed, or whose file
was shuffled, comes to the same assignment. A task is known by its own id, else by what it asks (`PromptRow.task`).

A byte a task is noted: its pool now, and its pool in this pass. Of more than `MOST_TASKS` tasks those with the smallest
hashes are followed; the others count as unseen.
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final

from rollstream.producers.numbering import Pass
from rollstream.producers.settings import MOST_POOLS, UNSEEN, CurriculumSettings
from rollstream.schemas.bounds import MAX_CURRICULUM_BYTES

_DIGEST_BYTES: Final = 8
MOST_TASKS: Final = MAX_CURRICULUM_BYTES - 2 * _DIGEST_BYTES
# Groups close long before so many others are posed; a cut may open them again.
_MOST_POSED: Final = 2**17
assert MOST_POOLS < 16, "two pools share a byte"


class Curriculum:
    """The pools of a source's tasks. Without settings there is one pool, and every task is posed."""

    def __init__(self, settings: CurriculumSettings | None, tasks: Iterable[str], *, seed: int) -> None:
        """`tasks`: the names of all, in any order."""
        pools = sorted(settings.pools.items(), key=lambda item: item[1].up_to) if settings else []
        self.names = (UNSEEN, *(name for name, _ in pools))
        """Of the pools; a pool's number is its place here."""
        self._bounds = [pool.up_to for _, pool in pools]
        self._weights = [settings.unseen_weight if settings else 1.0, *(pool.weight for _, pool in pools)]
        self._seed = seed
        hashes = sorted({_number(task) for task in tasks})
        self._places = {number: place for place, number in enumerate(hashes[:MOST_TASKS])}
        self._num_others = len(hashes) - len(self._places)
        self._tasks_digest = _digest(self.names, self._bounds, hashes)
        self._now, self._in_pass = bytearray(len(self._places)), bytearray(len(self._places))
        self._sizes = self._counted(self._now)
        self._shares = self._shares_in_pass()
        self._posed: OrderedDict[str, int | None] = OrderedDict()
        """Groups to the place of their task, None if it is not followed."""

    def begin_pass(self) -> None:
        """Fix the pools for the next pass."""
        self._in_pass[:] = self._now
        self._shares = self._shares_in_pass()

    def is_posed(self, task: str, epoch: int) -> bool:
        """Whether the pass of this epoch poses the task."""
        place = self._places.get(_number(task))
        share = self._shares[0 if place is None else self._in_pass[place]]
        return _number(f"{self._seed}/{epoch}/{task}") < share * 2**64

    def expect(self, group_id: str, task: str) -> None:
        """Note of which task a group is."""
        self._posed[group_id] = self._places.get(_number(task))
        if len(self._posed) > _MOST_POSED:
            self._posed.popitem(last=False)

    def knows(self, group_id: str) -> bool:
        """Whether it is known of which task a group is."""
        return group_id in self._posed

    def note(self, group_id: str, reward_mean: float | None) -> None:
        """A group closed; its task belongs into another pool from the next pass on, if its mean is known."""
        place = self._posed.get(group_id)
        if place is not None and reward_mean is not None and self._bounds:
            above = (number for number, bound in enumerate(self._bounds, 1) if reward_mean <= bound)
            before, after = self._now[place], next(above, len(self._bounds))
            self._now[place] = after
            # Counted as they move, since a loop asks for them each turn.
            self._sizes[before] -= 1
            self._sizes[after] += 1

    def sizes(self) -> dict[str, int]:
        """How many tasks each pool has now."""
        return {name: self._sizes[number] for number, name in enumerate(self.names)}

    def pool_of(self, task: str) -> str:
        """The name of the pool that a task belongs to now."""
        place = self._places.get(_number(task))
        return self.names[0 if place is None else self._now[place]]

    def state(self, dataset: str, of_pass: Pass) -> bytes:
        """All of it, for `restore`."""
        pairs = bytes(now << 4 | in_pass for now, in_pass in zip(self._now, self._in_pass, strict=True))
        return self._tasks_digest + self._pass_digest(dataset, of_pass) + pairs

    def restore(self, state: bytes | None, dataset: str, of_pass: Pass | None) -> bool:
        """Take over the pools of the same tasks and bounds; whether this pass goes on.

        Another set of tasks, or other bounds: every task is unseen. Another pass or other weights: a pass must begin.
        """
        digests, pairs = (state or b"")[: 2 * _DIGEST_BYTES], (state or b"")[2 * _DIGEST_BYTES :]
        is_known = digests[:_DIGEST_BYTES] == self._tasks_digest and len(pairs) == len(self._now)
        if not is_known or any(max(pair >> 4, pair & 15) >= len(self.names) for pair in set(pairs)):
            return False
        self._now[:] = bytes(pair >> 4 for pair in pairs)
        self._sizes = self._counted(self._now)
        if of_pass is None or digests[_DIGEST_BYTES:] != self._pass_digest(dataset, of_pass):
            return False
        self._in_pass[:] = bytes(pair & 15 for pair in pairs)
        self._shares = self._shares_in_pass()
        return True

    def _shares_in_pass(self) -> list[float]:
        """For each pool the share of its tasks that this pass poses."""
        counts = self._counted(self._in_pass)
        most = max((self._weights[number] for number, count in counts.items() if count), default=0.0)
        return [weight / most if most else 1.0 for weight in self._weights]

    def _counted(self, pools: bytearray) -> Counter[int]:
        """Tasks in each pool; those that are not followed are unseen."""
        counts = Counter(pools)
        counts[0] += self._num_others
        return counts

    def _pass_digest(self, dataset: str, of_pass: Pass) -> bytes:
        return _digest(self._weights, self._seed, dataset, of_pass)


def _number(text: str) -> int:
    """A number below 2^64 that stands for a text."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big")


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()[:_DIGEST_BYTES]
