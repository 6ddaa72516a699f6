"""The whole corpus: every family, for every topic, and what strangers give to the other doors: registry and Redis.

A kind is one way to be wrong: the name of a record within its family, whatever topics it is written to.
"""

from collections.abc import Collection, Iterable, Iterator

from rollstream.schemas.topics import TOPICS
from tests.harness.strange_redis import STRANGE_COUNTS, STRANGE_STATES
from tests.harness.strange_schemas import STRANGE
from tests.hostile.hostile import GENERAL, Context, Hostile
from tests.hostile.hostile_letters import LETTERS
from tests.hostile.hostile_special import SPECIAL, headers

FAMILIES = {**GENERAL, **SPECIAL, **LETTERS}
ALL_TOPICS = tuple(topic.name for topic in TOPICS)
_OF_RECORDS = tuple(topic for topic in TOPICS if topic.record is not None)


def of_family(context: Context, name: str, among: Collection[str] = ALL_TOPICS) -> Iterator[Hostile]:
    """The records of one family, for the named topics. `dead-letters`, which has no record, is in some alone."""
    topics = TOPICS if FAMILIES[name] in (headers, *LETTERS.values()) else _OF_RECORDS
    return (record for topic in topics if topic.name in among for record in FAMILIES[name](context, topic))


def kinds(records: Iterable[Hostile]) -> set[tuple[str, str]]:
    """The kinds of these records, and those of the other doors."""
    redis = {("redis_counts", repr(value)) for value in STRANGE_COUNTS} | {
        ("redis_states", repr(value)) for value in STRANGE_STATES
    }
    return {(record.family, record.name) for record in records} | redis | {("schemas", name) for name in STRANGE}
