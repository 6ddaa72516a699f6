"""`rollstream ledger` on a real broker: what stops every trainer is listed, and passed over if an operator says so."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.presence import TrainerPresence, is_trainer_present
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.cli.ledger import command
from rollstream.client.evaluate import newest_version
from rollstream.history.known import HistorySnapshot, KnownHistory, read_known
from rollstream.history.passing import read_entries
from rollstream.history.read import History, read
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError, FencedError, InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.topics import LEDGER, WEIGHTS, Topic
from rollstream.views.snapshot import StatusSource
from tests.harness.builders import an_entry, published
from tests.harness.waits import wait_until

STRANGER = "stranger"
TOPIC_ID = "4Tzq0h1yQ7y"


class Written:
    """A run whose trainer made versions 0 and 1 and still holds its id; anybody can write beside it."""

    def __init__(self, kafka: str, run: str, directory: Path) -> None:
        self.config = directory / "rollstream.toml"
        self.config.write_text(f'run = "{run}"\n[kafka]\nbootstrap_servers = "{kafka}"\n')
        self.settings = StageSettings.load(self.config)
        self.run = Run(self.settings)
        KafkaAdmin(KafkaSettings(bootstrap_servers=kafka)).create_topics(run, partitions=1)
        self.trainer = TransactionalPublisher(self.settings.kafka, f"{run}.trainer")
        self.trainer.init()
        self.commit(0)
        self.commit(1)

    def commit(self, version: int) -> None:
        """A step of the trainer, or its first restart."""
        weights = published(version, parent_version=version - 1 if version else None)
        self.trainer.commit([self.run.out_record(WEIGHTS, weights), self.run.out_record(LEDGER, step(version))])

    def put(self, topic: Topic[object], value: bytes | None) -> str:
        """Write as a stranger does; the record as commands name it."""
        with Publisher(self.settings.kafka, client_id=STRANGER) as publisher:
            delivery = publisher.publish_soon(OutRecord(topic=topic.of(self.settings.run), value=value)).result(20)
        return f"{topic.name}@{delivery.offset}"

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(command, [*arguments, "--config", str(self.config)])

    def listed(self) -> set[str]:
        """What `check` lists."""
        result = self.call("check", "--json")
        rows = json.loads(result.stdout)
        assert result.exit_code == (1 if rows else 0)
        return {f"{row['topic']}@{row['offset']}" for row in rows}

    def refused(self, *arguments: str) -> str:
        """Why a repair was refused."""
        error = self.call("repair", *arguments).exception
        assert isinstance(error, ConfigurationError)
        return str(error)

    def history(self) -> History:
        """As `weights` and `status` read it."""
        return read(self.run)

    def known(self, snapshot: HistorySnapshot | None = None) -> KnownHistory:
        """As a trainer reads it at its start, which goes on from a checkpoint's snapshot."""
        return read_known(self.run, TOPIC_ID, snapshot)


def step(version: int, incarnation: str = "trainer-1", **fields: object) -> LedgerEntry:
    kind = EntryKind.STEP if version else EntryKind.RESTART
    parent = version - 1 if version else None
    values = {"weight_version": version, "parent_version": parent, "step": version, "incarnation": incarnation}
    return an_entry(kind, **{**values, **fields})


@pytest.fixture
def written(kafka: str, topic_prefix: str, tmp_path: Path) -> Written:
    return Written(kafka, topic_prefix, tmp_path)


def test_garbage_stops_a_trainers_start_until_a_repair_passes_over_it(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    assert written.listed() == set()
    snapshot = written.known().snapshot()
    garbage = {written.put(topic, value) for topic in (LEDGER, WEIGHTS) for value in (b"garbage", None)}
    forged = written.put(WEIGHTS, AvroCodec(WEIGHTS).encode(published(2**40)))
    written.commit(2)
    for start in (None, snapshot):
        with pytest.raises(InconsistentLedgerError, match="`rollstream ledger check`"):
            written.known(start)
    assert written.listed() == {*garbage, forged}
    assert "unreadable" not in caplog.text, "what is listed is logged besides"
    assert "no entry of the ledger made version 1099511627776" in written.call("check").stdout

    assert written.call("repair", "--all").exit_code == 0
    assert written.listed() == set()
    for start in (None, snapshot, written.known().snapshot()):
        known = written.known(start)
        assert list(known.fold.surviving_versions()) == [2, 1, 0]
        assert (known.newest_version, list(known.uris)) == (2, [0, 1, 2])
    assert list(written.history().published) == [0, 1, 2]
    assert newest_version(written.run) == 2
    shown = StatusSource(written.settings).snapshot()
    assert shown.published is not None
    assert shown.published.weight_version == 2
    assert "nothing to repair" in written.call("repair", "--all").stdout
    with pytest.raises(FencedError):
        written.commit(3)


def test_a_strangers_entry_that_fits_is_passed_over_and_the_trainers_own_count_again(written: Written) -> None:
    forged = written.put(LEDGER, AvroCodec(LEDGER).encode(step(2, STRANGER)))
    written.commit(2)
    written.commit(3)
    own = written.listed()
    assert len(own) == 1
    assert forged not in own

    assert written.call("repair", forged).exit_code == 0
    assert written.listed() == set()
    entries = written.history().entries
    assert {version: entry.incarnation for version, entry in entries.items()} == dict.fromkeys(range(4), "trainer-1")
    shown = [entry.incarnation for entry in read_entries(written.run) if entry.kind is not EntryKind.SKIP]
    assert STRANGER not in shown


def test_a_repair_is_refused_while_a_trainer_lives_or_if_problems_would_be_left(written: Written) -> None:
    one, other = written.put(LEDGER, b"garbage"), written.put(WEIGHTS, b"garbage")
    for absent in ("ledger@99", "prompts@0"):
        assert f"no record of ledger or weights lies at {absent}" in written.refused(absent)
    assert f"the first is {other}" in written.refused(one)
    with TrainerPresence(written.settings.kafka, written.settings.run):
        wait_until(lambda: is_trainer_present(written.settings.kafka, written.settings.run), "it to be seen", 20.0)
        assert "--force (it exits with 75)" in written.refused("--all")
        written.commit(2)
        assert written.call("repair", one, other, "--force").exit_code == 0
        # Nothing is left, but a trainer that lives may have written since.
        assert "a trainer of run" in written.refused("--all")
    with pytest.raises(FencedError):
        written.commit(3)
    assert written.listed() == set()


def test_a_check_sees_what_lies_behind_the_open_transaction_of_a_killed_trainer(written: Written) -> None:
    killed = Producer(
        {**written.settings.kafka.client_config(), "transactional.id": STRANGER, "transaction.timeout.ms": 2000}
    )
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(WEIGHTS.of(written.settings.run), b"never committed")
    killed.flush(30)
    garbage = written.put(WEIGHTS, None)
    assert written.listed() == {garbage}
    assert written.call("repair", "--all").exit_code == 0
    assert list(written.known().fold.surviving_versions()) == [1, 0]


def test_a_repair_cannot_be_taken_back(written: Written) -> None:
    assert written.call("repair", written.put(LEDGER, b"garbage")).exit_code == 0
    (repair,) = (message for message, entry in written.run.read_with_messages(LEDGER) if entry.kind is EntryKind.SKIP)
    assert "is a repair itself" in written.refused(f"ledger@{repair.offset}")
    without_records = written.put(LEDGER, AvroCodec(LEDGER).encode(an_entry(EntryKind.SKIP, parent_version=None)))
    assert written.listed() == {without_records}
    assert written.call("repair", "--all").exit_code == 0
