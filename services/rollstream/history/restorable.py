"""Tells which versions a run can be rolled back to: their files are there, and a trainer can go on from them."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import Final

from rollstream.history.read import History
from rollstream.history.weight_store import open_weight_store
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.addresses import checked_location
from rollstream.schemas.errors import ConfigurationError

# Each may be a request to an object store, and a run may have made versions for weeks.
_MOST_LOOKED_AT: Final = 100
_MOST_NAMED: Final = 10

IsThere = Callable[[str], bool | None]
"""Whether what lies at a uri is there; None if it can't be seen from this machine."""


def checkpoint_is_there(uri: str, storage: StorageSettings) -> bool | None:
    """Whether the checkpoint that an entry names is still there, unread; None if that can't be seen from here."""
    place = uri.rpartition("/")[0]
    try:
        # Only what the ledger says: this machine may have no settings of the trainer.
        return open_weight_store(checked_location(place), storage).holds(uri) if "://" in place else None
    except (ConfigurationError, OSError, ValueError):
        return None


def restorable(history: History, weights: IsThere, checkpoint: IsThere) -> Iterator[int]:
    """Of the newest surviving versions those that can be rolled back to, the newest first; pure but for the look-ups.

    It ends where a look-up sees nothing: a store that does not answer is waited for each time.
    """
    look_up = cache(checkpoint)
    for version in islice(history.fold.surviving_versions(), _MOST_LOOKED_AT):
        if version not in history.published:
            continue
        needed = history.checkpoint_at(version)
        are_there = weights(history.published[version].uri)
        # Without a checkpoint at or before it the next trainer starts from the initial model.
        has_start = needed is None or (look_up(needed.uri) if are_there else False)
        if are_there is None or has_start is None:
            return
        if are_there and has_start:
            yield version


def choices(versions: Iterator[int]) -> str:
    """The first of these versions, in words for an error."""
    named = [str(version) for version in islice(versions, _MOST_NAMED + 1)]
    if not named:
        return f"from here no version can be seen, of the newest {_MOST_LOOKED_AT}, that can be rolled back to"
    more = ", and older ones" if len(named) > _MOST_NAMED else ""
    return f"choose one of {', '.join(named[:_MOST_NAMED])}{more}"
