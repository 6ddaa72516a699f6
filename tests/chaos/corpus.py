"""The whole corpus: every family, for every topic."""

from collections.abc import Collection, Iterator

from rollstream.schemas.topics import TOPICS
from tests.chaos.hostile import GENERAL, Context, Hostile
from tests.chaos.hostile_special import SPECIAL, headers

FAMILIES = {**GENERAL, **SPECIAL}
ALL_TOPICS = tuple(topic.name for topic in TOPICS)
_OF_RECORDS = tuple(topic for topic in TOPICS if topic.record is not None)


def of_family(context: Context, name: str, among: Collection[str] = ALL_TOPICS) -> Iterator[Hostile]:
    """The records of one family, for the named topics. `dead-letters`, which has no record, is in `headers` alone."""
    topics = TOPICS if FAMILIES[name] is headers else _OF_RECORDS
    return (record for topic in topics if topic.name in among for record in FAMILIES[name](context, topic))
