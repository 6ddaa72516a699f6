"""Which entries were confirmed, as Redis remembers for a while. It only saves work: what is written again is the same.

A value there is a stranger's word: one that is no sum of ours says nothing. Keys hold the id of the topic: what lay on
one that was deleted is not on the one in its place.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollstream.stage.maybe_redis import MaybeRedis

_SUM: Final = re.compile(rb"[0-9a-f]{32}")
# One command for all keys.
_REMEMBER: Final = (
    "for index, key in ipairs(KEYS) do redis.call('SET', key, ARGV[index + 1], 'EX', ARGV[1]) end return #KEYS"
)


class ConfirmedEntries:
    """Entries of one run by their ids. With `keep_seconds` below 1 nothing is remembered."""

    def __init__(self, redis: MaybeRedis, run: str, *, keep_seconds: float) -> None:
        self._redis = redis
        self._keep_seconds = int(keep_seconds)
        self._prefix = f"{{{run}.ingest}}:confirmed"  # the braces keep a run's keys on one node of a Redis cluster
        self.topic_ids: Mapping[str, str] = {}
        """Topic to its id. Before it is known, nothing is remembered."""

    async def sums(self, topic: str, ids: Sequence[str]) -> list[str | None]:
        """The sum of what was confirmed under each id; None if nothing is known of it."""
        keys = self._keys(topic, ids)
        found = await self._redis.ask("MGET", *keys) if keys else None
        if not isinstance(found, list) or len(found) != len(ids):
            return [None] * len(ids)
        return [one.decode() if isinstance(one, bytes) and _SUM.fullmatch(one) else None for one in found]

    async def remember(self, topic: str, sums: Mapping[str, str]) -> None:
        """Note what was confirmed: id to sum."""
        keys = self._keys(topic, tuple(sums))
        if keys:
            await self._redis.ask("EVAL", _REMEMBER, len(keys), *keys, self._keep_seconds, *sums.values())

    def _keys(self, topic: str, ids: Sequence[str]) -> list[str]:
        topic_id = self.topic_ids.get(topic)
        if topic_id is None or self._keep_seconds < 1:
            return []
        return [f"{self._prefix}:{topic_id}:{one}" for one in ids]


def sum_of(entry: Any) -> str:
    """What an entry is known by: 32 hex digits of its JSON."""
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:32]
