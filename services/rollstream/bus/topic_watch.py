"""Notices that topics get more partitions, are deleted, or are made anew, while somebody reads them.

Who assigns partitions by hand reads the added ones from here on (`reader.py`). A member of a group is told about them
by its group. A topic that was made anew is another one: offsets of the old one mean nothing there, and a client goes on
at them without a word. So everybody who reads looks at the topic's id.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from rollstream.bus.admin import AskedTopics, KafkaAdmin, TopicShape
from rollstream.bus.message import Partition
from rollstream.schemas.errors import BrokerError, ConfigurationError, TopicChangedError

_LOG = logging.getLogger(__name__)
# A reader is told 60 s as its bound; an answer that fails is asked for again in the next round.
_LOOK_EVERY_SECONDS: Final = 15.0
_ANSWER_SECONDS: Final = 5.0


class TopicWatch:
    """The partitions of some topics from a first look on. For one thread."""

    def __init__(self, admin: KafkaAdmin, topics: Sequence[str]) -> None:
        """Look at once. Raises `ConfigurationError` if a topic does not exist, `BrokerError` without an answer."""
        self._admin = admin
        self._shapes: dict[str, TopicShape] = {topic: admin.shape(topic) for topic in topics}
        self._missing: set[str] = set()
        self._asked: AskedTopics | None = None
        self._due = time.monotonic() + _LOOK_EVERY_SECONDS

    @property
    def partitions(self) -> list[Partition]:
        """All that are known, by topic and number."""
        return [(topic, number) for topic, shape in self._shapes.items() for number in range(shape.num_partitions)]

    def topic_id(self, topic: str) -> str:
        """The id of the topic that is read. It never changes, so any thread may ask."""
        return self._shapes[topic].topic_id

    def added(self) -> list[Partition]:
        """The partitions that came since the last call. Asks the broker now and then, and never waits for the answer.

        Raises `TopicChangedError` if a topic was deleted or made anew.
        """
        if self._asked is None:
            if time.monotonic() >= self._due:
                self._asked = self._ask()
            return []
        if not self._asked.is_answered:
            return []
        return self._take_in(self._asked)

    def look(self) -> list[Partition]:
        """The same, asked now: waits for the answer; without one nothing is known to have changed.

        A question that is open may have been answered before a change that matters now. A missing topic is asked for
        twice: whoever writes next must not write to one that comes in its place.
        """
        self._asked = None
        added = self._take_in(self._ask())
        return added + self._take_in(self._ask()) if self._missing else added

    def _ask(self) -> AskedTopics:
        return self._admin.ask_topics(list(self._shapes), _ANSWER_SECONDS)

    def _take_in(self, asked: AskedTopics) -> list[Partition]:
        self._asked, self._due = None, time.monotonic() + _LOOK_EVERY_SECONDS
        found: dict[str, TopicShape] = {}
        missing: set[str] = set()
        for topic in self._shapes:
            try:
                found[topic] = asked.shape(topic)
            except ConfigurationError:
                missing.add(topic)
            except BrokerError as error:
                _LOG.warning("cannot tell whether %s has more partitions: %s", topic, error)
        # A broker that has just started may know less than the others: one answer is not enough.
        if gone := missing & self._missing:
            raise TopicChangedError(f"topic {min(gone)} was deleted while it was read; `rollstream topics create`")
        self._missing = missing
        return self._compared(found)

    def _compared(self, found: Mapping[str, TopicShape]) -> list[Partition]:
        added: list[Partition] = []
        for topic, shape in found.items():
            known = self._shapes[topic]
            if shape.topic_id != known.topic_id:
                raise TopicChangedError(
                    f"topic {topic} was made anew while it was read: its id is {shape.topic_id}, and was "
                    f"{known.topic_id}; nothing that is known of the old one holds for it"
                )
            added += [(topic, number) for number in range(known.num_partitions, shape.num_partitions)]
            self._shapes[topic] = shape
        return added
