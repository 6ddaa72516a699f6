"""Where weights and checkpoints may be, which of them count, and what is restored from them."""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollstream.engines.model_directory import refuse_misfit, refuse_undivided
from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.known import KnownHistory
from rollstream.history.ledger import LedgerFold
from rollstream.history.read import History
from rollstream.history.restorable import checkpoint_is_there, choices, restorable
from rollstream.history.weight_cache import WeightCache
from rollstream.history.weight_store import directory_name, open_weight_store
from rollstream.process.settings.base import StageSettings
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.addresses import checked_location, is_bucket
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError, EngineError
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.weights import WeightFile
from rollstream.trainer.commits.checkpoint import (
    Position,
    checkpoint_directory,
    newest_history,
    read_position,
    write_checkpoint,
)
from tests.harness.builders import an_entry, published


@pytest.mark.parametrize(
    "location",
    ["weights", "/srv/my weights", "../weights", "file:///srv/weights", "s3://bucket", "s3://bucket/a/b", "gs://b/p",
     "az://account/container/p"],
)  # fmt: skip
def test_directories_and_buckets_are_taken(location: str) -> None:
    assert checked_location(location) == location
    assert is_bucket(location) == location.startswith(("s3:", "gs:", "az:"))


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("", "must have 1 to 1024 characters"),
        ("w" * 1025, "must have 1 to 1024 characters"),
        ("weights\n", "all of them printable"),
        ("http://host/weights", "must be a directory, or begin with file://, s3://, gs://, az://"),
        ("S3://bucket/weights", "must be a directory, or begin with"),
        ("file://srv/weights", "with three slashes"),
        ("s3://", "must be like s3://bucket/prefix"),
        ("s3:///weights", "must be like s3://bucket/prefix"),
        ("s3://bucket/../other", "must be like s3://bucket/prefix"),
        ("s3://key:hunter2@bucket/weights", r"keys belong in \[storage\] options"),
        ("s3://bucket/weights?secret=hunter2", r"keys belong in \[storage\] options"),
    ],
)
def test_what_is_no_place_is_refused_without_being_shown(
    location: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLSTREAM_RUN", "demo")
    monkeypatch.setenv("ROLLSTREAM_WEIGHT_STORE", location)
    with pytest.raises(ConfigurationError, match=said) as refused:
        StageSettings.load()
    assert "hunter2" not in str(refused.value)


def test_a_file_url_names_the_same_directory_as_its_path(tmp_path: Path) -> None:
    place = tmp_path / "my run 100%"
    stored = open_weight_store(place).write("0-abc", lambda directory: (directory / "x").write_text("y") and None)
    store = open_weight_store(place.as_uri())
    assert isinstance(store, DirectoryWeightStore)
    assert store.fetch(stored.uri, stored.files) == place / "0-abc"


@pytest.mark.parametrize("uri", ["file:///srv/my%20weights/3-abc", "s3://bucket/prefix/3-abc", "az://a/c/3-abc"])
def test_a_version_has_the_same_name_wherever_it_lies(uri: str) -> None:
    assert directory_name(uri) == "3-abc"


POSITION = Position(
    run="demo", weight_version=3, step=3, cluster_id="cluster", topic_ids={}, next_offsets=(), open_groups=()
)

HISTORY = KnownHistory("4Tzq0h1yQ7y").snapshot()


def test_a_checkpoint_that_was_written_here_is_restored(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path / "my checkpoints")
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, lambda _: None)
    assert read_position(checkpoint_directory(store, uri)) == POSITION


@pytest.mark.parametrize("uri", ["{other}", "{root}/../others/3-abc", "{root}", "file:///dev", "s3://bucket/3-abc"])
def test_a_checkpoint_elsewhere_is_refused_although_it_can_be_read(tmp_path: Path, uri: str) -> None:
    other = write_checkpoint(DirectoryWeightStore(tmp_path / "others"), "3-abc", POSITION, HISTORY, lambda _: None)
    root = tmp_path / "checkpoints"
    with pytest.raises(
        ConfigurationError, match=r"a checkpoint that is not here, or damaged: .* set \[trainer\] checkpoints"
    ):
        checkpoint_directory(DirectoryWeightStore(root), uri.format(other=other, root=root.as_uri()))


def save_state(directory: Path) -> None:
    (directory / "state.pt").write_bytes(b"tensors" * 1000)


@pytest.mark.parametrize("name", ["state/state.pt", "position.json", "history.json"])
def test_a_checkpoint_with_a_flipped_bit_is_not_restored(tmp_path: Path, name: str) -> None:
    store = DirectoryWeightStore(tmp_path)
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    path = tmp_path / "3-abc" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"damaged: .*{name}: expected sha256 "):
        checkpoint_directory(DirectoryWeightStore(tmp_path), uri)


def test_a_history_with_another_digit_is_not_believed(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path)
    write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    assert newest_history(store, "abc", "4Tzq0h1yQ7y") == HISTORY
    path = tmp_path / "3-abc" / "history.json"
    path.write_text(path.read_text().replace(":0", ":1", 1))
    assert newest_history(store, "abc", "4Tzq0h1yQ7y") is None


def test_a_checkpoint_whose_sums_are_gone_is_not_restored_and_its_history_not_believed(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path)
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    (tmp_path / "3-abc" / "manifest.json").unlink()
    with pytest.raises(ConfigurationError, match=r"3-abc/manifest\.json"):
        checkpoint_directory(store, uri)
    assert newest_history(store, "abc", "4Tzq0h1yQ7y") is None


def test_a_checkpoint_that_changes_while_it_is_restored_is_told(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path)
    uri = write_checkpoint(store, "3-abc", POSITION, HISTORY, save_state)
    state = checkpoint_directory(store, uri) / "state" / "state.pt"
    store.confirm()
    with state.open("r+b") as stream:  # in place, of the same size
        stream.write(b"T")
    with pytest.raises(CorruptWeightsError, match=r"state\.pt was changed between the check"):
        store.confirm()
    store.delete("3-abc")
    store.confirm()  # what retention deletes meanwhile was read as it was


def a_history(versions: int, *, checkpoints: tuple[int, ...]) -> History:
    """Steps up to this version; some entries name a checkpoint, c1 that of version 1."""
    fold = LedgerFold()
    for version in range(versions + 1):
        fold.add(
            an_entry(
                EntryKind.STEP if version else EntryKind.RESTART, step=version, weight_version=version,
                parent_version=version - 1 if version else None,
                checkpoint=f"c{version}" if version in checkpoints else None,
            )
        )  # fmt: skip
    records = {version: published(version, uri=f"w{version}") for version in range(versions + 1)}
    return History(published=records, entries={}, fold=fold, newest_version=versions, problems=(), skipped=frozenset())


def found(history: History, gone: Set[str] = frozenset(), unseen: Set[str] = frozenset()) -> list[int]:
    def look_up(uri: str) -> bool | None:
        return None if uri in unseen else uri not in gone

    return list(restorable(history, look_up, look_up))


def test_versions_from_a_kept_checkpoint_on_can_be_rolled_back_to() -> None:
    history = a_history(6, checkpoints=(2, 4))
    assert found(history) == [6, 5, 4, 3, 2, 1, 0]
    # Versions 2 and 3 would need the deleted one; 0 and 1 start from the initial model.
    assert found(history, gone={"c2"}) == [6, 5, 4, 1, 0]
    assert found(history, gone={"c2", "w0", "w1", "w2", "w3", "w5"}) == [6, 4]
    assert found(history, gone={"c2", "c4", "w0", "w1"}) == []


def test_what_cannot_be_seen_is_not_offered_and_not_asked_for_twice() -> None:
    history = a_history(6, checkpoints=(2, 4))
    assert found(history, unseen={"c2"}) == [6, 5, 4]
    asked: list[str] = []

    def nothing_seen(uri: str) -> None:
        asked.append(uri)

    assert list(restorable(history, nothing_seen, nothing_seen)) == []
    assert asked == ["w6"]


def test_a_long_history_costs_a_bounded_number_of_look_ups() -> None:
    asked: list[str] = []

    def gone(uri: str) -> bool:
        asked.append(uri)
        return False

    history = a_history(500, checkpoints=(450,))
    assert list(restorable(history, gone, gone)) == []
    assert len(asked) == 100


def test_an_error_names_ten_versions_at_most() -> None:
    assert choices(iter([6, 4])) == "choose one of 6, 4"
    assert choices(iter(range(20, 0, -1))) == "choose one of 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, and older ones"
    assert "no version can be seen" in choices(iter([]))


@pytest.mark.parametrize(
    ("uri", "is_there"),
    [
        ("file://{root}/checkpoints/1-abc", True),
        ("file://{root}/checkpoints/2-abc", False),
        ("file://{root}/elsewhere/1-abc", None),  # where no directory is mounted nothing can be said
        ("http://{root}/checkpoints/1-abc", None),
        ("s3://user@bucket/1-abc", None),
        ("checkpoints/1-abc", None),
        ("file:///" + "x" * 5000 + "/1-abc", None),
        ("file:///\0/1-abc", None),
        ("", None),
    ],
)
def test_a_checkpoint_is_there_or_gone_or_cannot_be_seen(uri: str, is_there: bool | None, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "1-abc").mkdir(parents=True)
    assert checkpoint_is_there(uri.format(root=tmp_path), StorageSettings()) is is_there


CONTENT = b"weights" * 100
FILE = WeightFile(name="model.safetensors", num_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


class _Looked(tuple[WeightFile, ...]):
    """The files of a version; says when somebody has begun to look at them."""

    began = threading.Event()

    def __iter__(self) -> Iterator[WeightFile]:
        self.began.set()
        return super().__iter__()


def test_a_copy_that_another_process_completes_meanwhile_and_keeps_is_used(tmp_path: Path) -> None:
    directory = tmp_path / "3-abc"
    directory.mkdir()
    other = os.open(directory, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)  # as a process that serves the version, for as long as it runs
    with ThreadPoolExecutor(1) as pool:
        try:
            fetching = pool.submit(WeightCache(tmp_path, 2**20).fetch, "3-abc", _Looked((FILE,)), _refuse)
            assert _Looked.began.wait(30)
            (directory / FILE.name).write_bytes(CONTENT)
            assert fetching.result(30) == directory
        finally:
            os.close(other)


def _refuse(file: WeightFile, path: Path) -> None:
    raise AssertionError("what another process has completed is not downloaded again")


LEARNED = {"model.embed_tokens.weight": (64, 8), "model.layers.0.mlp.up_proj.weight": (32, 8)}
COMPUTED = {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}


@pytest.mark.parametrize(("found", "wanted"), [(LEARNED, LEARNED | COMPUTED), (LEARNED | COMPUTED, LEARNED)])
def test_a_table_that_the_model_computes_may_be_in_the_base_or_in_the_version_alone(
    found: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> None:
    refuse_misfit(Path("4-abc"), found, wanted, is_tied=True)


def test_a_learned_tensor_that_is_missing_strange_or_of_another_shape_is_refused() -> None:
    short = {"model.embed_tokens.weight": (64, 9), "model.norm.weight": (8,)}
    with pytest.raises(
        EngineError, match=r"1 tensors missing .*up_proj.* 1 unknown .*norm.* 1 of another shape .*embed"
    ):
        refuse_misfit(Path("4-abc"), short, LEARNED, is_tied=True)


def test_only_a_tied_output_head_may_be_missing() -> None:
    untied = LEARNED | {"lm_head.weight": (64, 8)}
    refuse_misfit(Path("4-abc"), LEARNED, untied, is_tied=True)
    with pytest.raises(EngineError, match="1 tensors missing"):
        refuse_misfit(Path("4-abc"), LEARNED, untied, is_tied=False)


def write_config(path: Path, **sizes: int) -> Path:
    (path / "config.json").write_text(json.dumps({"num_attention_heads": 12, "intermediate_size": 96} | sizes))
    return path


@pytest.mark.parametrize(
    ("sizes", "tensor_parallel_size"),
    [
        *(({}, size) for size in (1, 2, 3, 4, 6, 12)),
        # Each GPU has some of the vocabulary.
        ({"vocab_size": 97}, 4),
        ({"vocab_size": 150}, 3),
        ({"vocab_size": 1}, 1),
        # Fewer key and value heads than GPUs are copied.
        ({"num_key_value_heads": 2}, 4),
        ({"num_key_value_heads": 4}, 4),
    ],
)
def test_gpus_that_divide_the_model_are_taken(sizes: dict[str, int], tensor_parallel_size: int, tmp_path: Path) -> None:
    refuse_undivided(write_config(tmp_path, **sizes), tensor_parallel_size)


@pytest.mark.parametrize(
    ("sizes", "tensor_parallel_size", "said"),
    [
        ({}, 8, "tensor_parallel_size 8 does not divide num_attention_heads 12"),
        ({"num_key_value_heads": 4}, 6, "tensor_parallel_size 6 does not divide num_key_value_heads 4"),
        ({"num_key_value_heads": 6}, 4, "tensor_parallel_size 4 does not divide num_key_value_heads 6"),
        ({"intermediate_size": 100}, 3, "tensor_parallel_size 3 does not divide intermediate_size 100"),
        ({"vocab_size": 65}, 3, "tensor_parallel_size 3 does not divide vocab_size 65 of .* pads it to 128 rows"),
        ({"vocab_size": 96}, 4, "tensor_parallel_size 4 does not divide vocab_size 96 of .* pads it to 128 rows"),
    ],
)
def test_gpus_that_do_not_divide_the_model_are_refused(
    sizes: dict[str, int], tensor_parallel_size: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        refuse_undivided(write_config(tmp_path, **sizes), tensor_parallel_size)


def test_the_heads_of_a_model_that_also_takes_images_are_those_of_its_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_attention_heads": 9}}))
    with pytest.raises(ConfigurationError, match="does not divide num_attention_heads 9"):
        refuse_undivided(tmp_path, 2)
