"""Records of strangers, of every kind and on every topic, while all stages live: each ends, and the loop goes on."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import pytest

from rollstream.history.passing import RecordPlace
from rollstream.history.repair import check
from rollstream.schemas.topics import EVAL_PROGRESS, FEEDBACK, INGEST_PROMPTS, LEDGER, PROGRESS, TOPICS, WEIGHTS
from tests.hostile.corpus import ALL_TOPICS, FAMILIES, kinds, of_family
from tests.hostile.hostile import Context, Hostile
from tests.hostile.living import Fed, Living, a_living_loop

EVERY_RECORD_COUNTS = (LEDGER.name, WEIGHTS.name)
# None of the four stages reads these; progress is read where a partition is got (faults/test_progress.py).
UNREAD = (INGEST_PROMPTS.name, FEEDBACK.name, PROGRESS.name, EVAL_PROGRESS.name)
OTHER_LANES = [topic for topic in ALL_TOPICS if topic.startswith(("eval-", "serve-")) and topic not in UNREAD]
OTHERS = [topic for topic in ALL_TOPICS if topic not in (*EVERY_RECORD_COUNTS, *OTHER_LANES, *UNREAD)]
OF_LEDGER_OR_WEIGHTS = ("foreign_files", "false_entries")
SMALL = [name for name in FAMILIES if name not in (*OF_LEDGER_OR_WEIGHTS, "large")]
# The same stages read the other lanes by the same code: by default these show that they do.
OTHER_LANES_BY_DEFAULT = ("truncated", "wire_format", "enums", "tokens")


class Kept:
    """One living loop for all families; after a failure the next family gets a fresh one."""

    def __init__(self, kafka: str, redis_url: str, model: Path, directory: Path) -> None:
        self._given = (kafka, redis_url, model, directory)
        self._stack = ExitStack()
        self._living: Living | None = None

    @contextmanager
    def living(self) -> Iterator[Living]:
        """The loop; it is not used again if the block fails."""
        if self._living is None:
            kafka, redis_url, model, directory = self._given
            name = f"hostile-{uuid.uuid4().hex[:8]}"
            self._living = self._stack.enter_context(a_living_loop(kafka, name, directory / name, redis_url, model))
        try:
            yield self._living
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """End it."""
        self._living = None
        self._stack.close()


@pytest.fixture(scope="module")
def kept(kafka: str, redis_url: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    made = Kept(kafka, redis_url, model, tmp_path_factory.mktemp("hostile"))
    yield made
    made.drop()


def test_the_corpus_has_every_topic_and_is_always_the_same(tmp_path: Path) -> None:
    context = Context(run="demo", outside=tmp_path)
    # The large ones take seconds.
    corpus = list(families(context, [*SMALL, *OF_LEDGER_OR_WEIGHTS], ALL_TOPICS))
    assert len(kinds(corpus)) >= 1400
    assert {record.topic for record in corpus} == {topic.name for topic in TOPICS}
    names = Counter(str(record) for record in corpus)
    assert [name for name, count in names.items() if count > 1] == []
    again = list(families(context, ("single_bits", "numbers", "code"), ALL_TOPICS))
    assert again == [record for record in corpus if record.family in ("single_bits", "numbers", "code")]


def families(context: Context, names: Iterable[str], topics: Collection[str]) -> Iterator[Hostile]:
    """The records of several families, one family after the other."""
    return chain.from_iterable(of_family(context, name, topics) for name in names)


def fed_to(living: Living, records: Iterable[Hostile]) -> list[Fed]:
    """Write the records: each ends with an answer, and the loop goes on as before."""
    before = living.state()
    fed = living.feed(records)
    living.until_answered(fed)
    living.check_that_it_goes_on(before)
    living.check_that_nothing_leaked()
    return fed


def test_each_record_of_a_stranger_ends_and_the_loop_goes_on(kept: Kept) -> None:
    with kept.living() as living:
        context = living.context()
        other_lanes = families(context, OTHER_LANES_BY_DEFAULT, OTHER_LANES)
        fed = fed_to(living, chain(families(context, SMALL, OTHERS), other_lanes))
        for command in (("dead-letters", "list"), ("tail", "prompts", "-n", str(len(fed))), ("status", "--once")):
            assert "\x1b" not in living.loop.run.command(*command)


def test_each_large_record_of_a_stranger_ends_and_the_loop_goes_on(kept: Kept) -> None:
    with kept.living() as living:
        fed_to(living, of_family(living.context(), "large", OTHERS))


@pytest.mark.slow
def test_each_record_on_the_other_lanes_ends_and_the_loop_goes_on(kept: Kept) -> None:
    with kept.living() as living:
        for names in (SMALL, ("large",)):
            fed_to(living, families(living.context(), names, OTHER_LANES))


def test_what_strangers_write_on_ledger_and_weights_is_listed_and_passed_over(kept: Kept) -> None:
    with kept.living() as living:
        before, context, loop = living.state(), living.context(), living.loop
        fed = living.feed(families(context, FAMILIES, EVERY_RECORD_COUNTS))
        living.check_that_it_goes_on(before)
        living.check_that_nothing_leaked()
        loop.stop("trainer")
        listed = {place for place, _ in check(loop.run.on_bus)}
        assert [one.name for one in fed if RecordPlace(one.place[0], one.place[2]) not in listed] == []
        loop.run.command("ledger", "repair", "--all")
        assert loop.run.command("ledger", "check") == ""
        loop.start("trainer")
        living.check_that_it_goes_on(living.state())
