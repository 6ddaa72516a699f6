"""`rollstream weights` on a real broker: what it lists, how it goes back, and when it refuses."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.message import OutRecord
from rollstream.bus.presence import TrainerPresence, is_trainer_present
from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.cli.weights import command
from rollstream.history.ledger import LedgerFold
from rollstream.history.read import read
from rollstream.history.weight_store import open_weight_store
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError, FencedError, RollstreamError
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.topics import LEDGER, WEIGHTS
from tests.harness.builders import an_entry, published
from tests.harness.waits import wait_until

NEWEST = 3


class Trained:
    """A run whose trainer made versions 0 to 3, with a checkpoint at version 1, and still holds its id."""

    def __init__(self, kafka: str, run: str, directory: Path) -> None:
        self.config = directory / "rollstream.toml"
        self.config.write_text(
            f'run = "{run}"\nweight_store = "{directory / "weights"}"\n[kafka]\nbootstrap_servers = "{kafka}"\n'
        )
        self.settings = StageSettings.load(self.config)
        self.checkpoint = directory / "checkpoints" / "1-abc"
        self.checkpoint.mkdir(parents=True)
        self.uri = self.checkpoint.as_uri()
        KafkaAdmin(KafkaSettings(bootstrap_servers=kafka)).create_topics(run, partitions=1)
        self.publisher = TransactionalPublisher(self.settings.kafka, f"{run}.trainer")
        self.publisher.init()
        for version in range(NEWEST + 1):
            self.commit(version)

    def commit(self, version: int) -> None:
        stored = open_weight_store(self.settings.weight_store).write(
            f"{version}-abc",
            lambda directory: (directory / "model.safetensors").write_bytes(bytes([version] * 99)) and None,
        )
        parent = version - 1 if version else None
        weights = published(version, parent_version=parent, uri=stored.uri, files=stored.files, step=version)
        entry = an_entry(
            kind=EntryKind.STEP if version else EntryKind.RESTART, weight_version=version, parent_version=parent,
            step=version, checkpoint=self.uri if version == 1 else None,
            metrics={"loss": 0.5},
        )  # fmt: skip
        run = self.settings.run
        self.publisher.commit(
            [
                OutRecord(topic=WEIGHTS.of(run), key=b"policy", value=AvroCodec(WEIGHTS).encode(weights)),
                OutRecord(topic=LEDGER.of(run), key=run.encode(), value=AvroCodec(LEDGER).encode(entry)),
            ]
        )

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(command, [*arguments, "--config", str(self.config)])

    def fold(self) -> LedgerFold:
        return read(Run(self.settings)).fold


@pytest.fixture
def trained(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Trained]:
    return Trained(kafka, topic_prefix, tmp_path)


def error_of(result: Result, kind: type[RollstreamError]) -> str:
    assert isinstance(result.exception, kind)
    return str(result.exception)


def test_rolling_back_publishes_the_older_files_and_fences_the_trainer(trained: Trained) -> None:
    result = trained.call("rollback", "2")
    assert result.exit_code == 0, result.exception
    assert "version 4 is published with the files of version 2" in result.output
    assert f"goes on from the checkpoint of version 1: {trained.uri}" in result.output
    history = read(Run(trained.settings))
    assert history.published[4].files == history.published[2].files
    assert (history.published[4].parent_version, history.published[4].step) == (2, 2)
    assert list(history.fold.surviving_versions()) == [4, 2, 1, 0]
    with pytest.raises(FencedError):
        trained.commit(NEWEST + 2)
    assert trained.fold().current_version == 4

    shutil.rmtree(Path(trained.settings.weight_store) / "1-abc")  # as a trainer does with old versions
    rows = json.loads(trained.call("list", "--json").output)
    assert [(row["version"], row["parent"], row["surviving"], row["pruned"]) for row in rows] == [
        (4, 2, True, False), (3, 2, False, False), (2, 1, True, False), (1, 0, True, True), (0, None, True, False),
    ]  # fmt: skip
    table = trained.call("list").output
    assert "5 versions of policy" in table
    assert "rollback" in table
    assert "pruned" in table
    Path(trained.settings.weight_store).rename(Path(trained.settings.weight_store).with_name("elsewhere"))
    assert json.loads(trained.call("list", "--json", "--last", "1").output)[0]["pruned"] is None

    refused = error_of(trained.call("rollback", "3"), ConfigurationError)
    assert "version 3 is not on the surviving branch" in refused


def test_a_pruned_version_cannot_be_rolled_back_to_and_the_trainer_goes_on(trained: Trained) -> None:
    shutil.rmtree(Path(trained.settings.weight_store) / "2-abc")
    refused = error_of(trained.call("rollback", "2", "--force"), ConfigurationError)
    assert "the files of version 2 are deleted" in refused
    assert refused.endswith("; choose one of 3, 1, 0")
    trained.commit(NEWEST + 1)  # it was not fenced


def test_a_version_number_that_no_trainer_reaches_takes_none_from_the_next_one(trained: Trained) -> None:
    for number in (2**53, 2**52 + 1):
        foreign = AvroCodec(WEIGHTS).encode(published(number, parent_version=None))
        trained.publisher.commit([OutRecord(topic=WEIGHTS.of(trained.settings.run), key=b"policy", value=foreign)])
    assert read(Run(trained.settings)).newest_version == NEWEST
    assert trained.call("rollback", "2").exit_code == 0
    assert trained.fold().current_version == NEWEST + 1


def test_a_living_trainer_is_not_fenced_unless_forced(trained: Trained) -> None:
    with TrainerPresence(trained.settings.kafka, trained.settings.run):
        settings = trained.settings
        wait_until(lambda: is_trainer_present(settings.kafka, settings.run), "the trainer to be seen", 20.0)
        assert "--force (it exits with 75)" in error_of(trained.call("rollback", "1"), ConfigurationError)
        trained.commit(NEWEST + 1)
        assert trained.call("rollback", "1", "--force").exit_code == 0
    with pytest.raises(FencedError):
        trained.commit(NEWEST + 3)
    assert trained.fold().current_version == NEWEST + 2


def test_damaged_files_are_shown_and_refused(trained: Trained) -> None:
    shown = json.loads(trained.call("show", "2", "--json").output)
    assert (shown["files_are"], shown["metrics"]) == ("complete, sums are right", {"loss": 0.5})
    (Path(trained.settings.weight_store) / "2-abc" / "model.safetensors").write_bytes(b"x" * 99)
    assert "damaged or gone" in trained.call("show", "2").output
    assert "expected sha256" in error_of(trained.call("rollback", "2"), CorruptWeightsError)
    assert "pruned" not in trained.call("list").output
    assert "no version 9; the newest is 3" in error_of(trained.call("show", "9"), ConfigurationError)


def test_a_version_that_no_trainer_could_go_on_from_is_refused_and_the_others_are_named(trained: Trained) -> None:
    trained.checkpoint.rmdir()  # as a trainer does with old ones
    assert "pruned" in trained.call("list").output
    refused = error_of(trained.call("rollback", "2", "--force", "--unseen-checkpoint"), ConfigurationError)
    assert (
        f"no trainer could go on from version 2: it would need the checkpoint of version 1, '{trained.uri}'" in refused
    )
    assert refused.endswith("which is gone; choose one of 0")
    trained.commit(NEWEST + 1)  # it was not fenced
    # Before the first checkpoint a trainer starts from the initial model.
    rolled_back = trained.call("rollback", "0")
    assert rolled_back.exit_code == 0, rolled_back.exception
    assert "goes on from the initial model" in rolled_back.output


def test_a_checkpoint_that_cannot_be_seen_from_here_needs_an_option(trained: Trained) -> None:
    trained.checkpoint.parent.rename(trained.checkpoint.parent.with_name("on-another-machine"))
    assert json.loads(trained.call("show", "1", "--json").output)["checkpoint_pruned"] is None
    refused = error_of(trained.call("rollback", "2", "--force"), ConfigurationError)
    assert f"starts from the checkpoint of version 1, '{trained.uri}', and from here it can't be seen" in refused
    assert "--unseen-checkpoint" in refused
    trained.commit(NEWEST + 1)  # it was not fenced
    rolled_back = trained.call("rollback", "2", "--unseen-checkpoint")
    assert rolled_back.exit_code == 0, rolled_back.exception
    assert list(trained.fold().surviving_versions()) == [NEWEST + 2, 2, 1, 0]
