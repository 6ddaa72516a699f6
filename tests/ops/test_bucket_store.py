"""Weight versions in a real S3 server: streamed, checked, kept in a bounded cache; an outage is ridden out."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from pydantic import SecretStr

from rollstream.history.bucket_store import BucketWeightStore
from rollstream.history.restorable import checkpoint_is_there
from rollstream.history.weight_files import StoredWeights
from rollstream.history.weight_store import WeightStore, open_weight_store
from rollstream.local import doctor
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.errors import ConfigurationError, CorruptWeightsError, WeightStoreError
from tests.harness.s3_fixtures import BUCKET, KEY, SECRET, S3Server, an_s3_server, s3

__all__ = ["s3"]
MEBI = 2**20


@pytest.fixture
def url(topic_prefix: str) -> str:
    return f"s3://{BUCKET}/{topic_prefix}/weights"


@pytest.fixture
def storage(s3: S3Server, tmp_path: Path) -> StorageSettings:
    return s3.storage(tmp_path / "cache", outage_seconds=20)


@pytest.fixture
def store(url: str, storage: StorageSettings) -> WeightStore:
    return open_weight_store(url, storage)


def save(content: bytes = b"weights" * 100) -> Callable[[Path], None]:
    """Writes a version with these weights and one file in a folder."""

    def write(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(content)
        (directory / "tokenizer").mkdir()
        (directory / "tokenizer" / "vocab.json").write_text("{}")

    return write


def copies(storage: StorageSettings) -> set[str]:
    """Names of the copies in the cache, hidden ones included."""
    return {path.name for path in storage.cache.glob("*/*")}


def test_what_a_trainer_writes_a_generator_on_another_machine_fetches_whole(
    s3: S3Server, url: str, store: WeightStore, storage: StorageSettings, tmp_path: Path
) -> None:
    content = os.urandom(20 * MEBI + 17)  # three parts
    stored = store.write("3-abc", save(content))
    assert stored.uri == f"{url}/3-abc"
    assert [file.name for file in stored.files] == ["model.safetensors", "tokenizer/vocab.json"]
    assert copies(storage) == set()
    elsewhere = open_weight_store(url, s3.storage(tmp_path / "other-cache"))
    directory = elsewhere.fetch(stored.uri, stored.files)
    assert directory.name == "3-abc"
    assert (directory / "model.safetensors").read_bytes() == content
    assert (directory / "tokenizer" / "vocab.json").read_text() == "{}"
    assert elsewhere.holds(stored.uri) is True


def test_a_copy_that_is_whole_is_used_although_the_store_is_gone(tmp_path: Path, url: str) -> None:
    with an_s3_server(tmp_path) as server:
        store = open_weight_store(url, server.storage(tmp_path / "cache", outage_seconds=0))
        stored = store.write("3-abc", save())
        first = store.fetch(stored.uri, stored.files)
        server.kill()
        again = open_weight_store(url, server.storage(tmp_path / "cache", outage_seconds=0))
        assert again.fetch(stored.uri, stored.files) == first
        with pytest.raises(WeightStoreError, match=rf"could not list {url}: "):
            again.names("abc")
        assert again.holds(stored.uri) is None


def test_a_checkpoint_in_a_bucket_is_there_or_gone_or_cannot_be_seen(tmp_path: Path, url: str) -> None:
    with an_s3_server(tmp_path) as server:
        storage = server.storage(tmp_path / "cache", outage_seconds=0)
        store = open_weight_store(url, storage)
        stored = store.write("3-abc", save())
        assert checkpoint_is_there(stored.uri, storage) is True
        store.delete("3-abc")
        assert checkpoint_is_there(stored.uri, storage) is False
        assert checkpoint_is_there(stored.uri, StorageSettings()) is None  # without keys nobody is asked
        server.kill()
        assert checkpoint_is_there(stored.uri, storage) is None


def test_an_outage_in_the_middle_of_both_directions_is_ridden_out(tmp_path: Path, url: str) -> None:
    content = os.urandom(200 * MEBI)
    with an_s3_server(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        store = open_weight_store(url, server.storage(tmp_path / "cache"))

        def during_an_outage(work: Callable[[], object]) -> object:
            running = pool.submit(work)
            threading.Event().wait(0.2)  # somewhere in the middle; the test holds wherever it is
            server.kill()
            server.start()
            return running.result(240)

        stored = during_an_outage(lambda: store.write("3-abc", save(content)))
        assert isinstance(stored, StoredWeights)
        directory = during_an_outage(lambda: store.fetch(stored.uri, stored.files))
        assert isinstance(directory, Path)
        assert (directory / "model.safetensors").read_bytes() == content


def test_a_torn_upload_counts_for_nothing(s3: S3Server, url: str, store: WeightStore, storage: StorageSettings) -> None:
    stored = store.write("3-abc", save())
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    obstore.delete(s3.bucket(), f"{prefix}/3-abc/manifest.json")
    assert store.holds(stored.uri) is False
    with pytest.raises(CorruptWeightsError, match="it was deleted, or never complete"):
        store.fetch(stored.uri, None)
    assert store.names("abc") == {"3-abc"}  # so that the next trainer deletes it
    obstore.delete(s3.bucket(), f"{prefix}/3-abc/model.safetensors")
    with pytest.raises(CorruptWeightsError, match=r"model\.safetensors': expected 700 bytes, got none"):
        store.fetch(stored.uri, stored.files)
    assert copies(storage) == set()


@pytest.mark.parametrize(("content", "said"), [(b"WEIGHTS" * 100, "expected sha256 "), (b"short", "700 bytes, got 5")])
def test_an_object_that_is_not_what_was_published_is_refused(
    s3: S3Server, url: str, store: WeightStore, content: bytes, said: str
) -> None:
    stored = store.write("3-abc", save())
    obstore.put(s3.bucket(), f"{url.removeprefix(f's3://{BUCKET}/')}/3-abc/model.safetensors", content)
    with pytest.raises(CorruptWeightsError, match=said):
        store.fetch(stored.uri, stored.files)


@pytest.mark.parametrize(
    "uri",
    ["s3://other/3-abc", "{url}", "{url}/", "{url}/../weights/3-abc", "{url}/3-abc/x", "{url}-beside/3-abc",
     "file:///etc", "gs://models/3-abc", "{url}/" + "x" * 10_000_000],
    ids=lambda uri: uri[:40],
)  # fmt: skip
def test_a_place_outside_of_the_store_is_refused_unseen(store: WeightStore, url: str, uri: str) -> None:
    stored = store.write("3-abc", save())
    with pytest.raises(CorruptWeightsError, match="does not lie below") as refused:
        store.fetch(uri.format(url=url), stored.files)
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize("name", ["../other/file", "/etc/passwd", "a\0b", "tokenizer/../../x"])
def test_a_file_outside_of_its_version_is_not_asked_for(store: WeightStore, name: str) -> None:
    stored = store.write("3-abc", save())
    evil = stored.files[0].model_copy(update={"name": name})
    with pytest.raises(CorruptWeightsError, match="lies outside of"):
        store.fetch(stored.uri, [evil])


def test_what_a_killed_download_left_is_completed_and_whole_files_are_not_read_again(
    store: WeightStore, storage: StorageSettings
) -> None:
    stored = store.write("3-abc", save())
    directory = store.fetch(stored.uri, stored.files)
    weights, vocabulary = directory / "model.safetensors", directory / "tokenizer" / "vocab.json"
    weights.write_bytes(weights.read_bytes()[:50])
    os.utime(vocabulary, (1, 1))
    store.fetch(stored.uri, stored.files)
    assert weights.read_bytes() == b"weights" * 100
    assert vocabulary.stat().st_mtime == 1
    (directory / "more.safetensors").write_bytes(b"nobody's")
    with pytest.raises(CorruptWeightsError, match="has no sum"):
        store.fetch(stored.uri, stored.files)


def test_the_cache_is_bounded_and_never_evicts_what_serves(s3: S3Server, url: str, tmp_path: Path) -> None:
    storage = s3.storage(tmp_path / "cache", cache_bytes=2 * MEBI)
    store = open_weight_store(url, storage)
    stored = [store.write(f"{version}-abc", save(os.urandom(MEBI // 2))) for version in range(6)]
    store.fetch(stored[0].uri, stored[0].files)
    store.serve(stored[0].uri)
    for one in stored[1:]:
        store.fetch(one.uri, one.files)
        assert "0-abc" in copies(storage)
    assert len(copies(storage)) == 3
    assert "5-abc" in copies(storage)
    store.serve(stored[5].uri)
    huge = store.write("6-abc", save(os.urandom(3 * MEBI // 2)))
    with pytest.raises(WeightStoreError, match=r"no room for version 6-abc .* raise \[storage\] cache_bytes"):
        store.fetch(huge.uri, huge.files)
    assert "5-abc" in copies(storage)


def test_processes_that_share_a_cache_download_a_version_once(s3: S3Server, url: str, storage: StorageSettings) -> None:
    stored = open_weight_store(url, storage).write("3-abc", save(os.urandom(30 * MEBI)))
    with ThreadPoolExecutor(4) as pool:
        stores = [open_weight_store(url, storage) for _ in range(4)]
        found = set(pool.map(lambda store: store.fetch(stored.uri, stored.files), stores))
    [directory] = found
    assert (directory / "model.safetensors").stat().st_size == 30 * MEBI
    assert copies(storage) == {"3-abc"}


def test_a_version_is_written_once(store: WeightStore) -> None:
    store.write("3-abc", save())
    with pytest.raises(WeightStoreError, match="already exists"):
        store.write("3-abc", save(b"other"))


def test_a_deleted_version_leaves_no_object_and_may_be_deleted_again(
    s3: S3Server, url: str, store: WeightStore
) -> None:
    kept = store.write("30-abc", save())
    store.write("3-abc", save())
    store.delete("3-abc")
    store.delete("3-abc")
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    assert {key for key in s3.object_names() if key.startswith(f"{prefix}/3")} == {
        f"{prefix}/30-abc/{name}" for name in ("manifest.json", "model.safetensors", "tokenizer/vocab.json")
    }
    assert store.names("abc") == {"30-abc"}
    assert store.holds(kept.uri) is True


def test_versions_are_found_by_how_their_writers_incarnation_begins(store: WeightStore) -> None:
    assert store.names("ab") == set()
    for name in ("3-ab01", "4-ab02", "4-cd01"):
        store.write(name, save())
    assert store.names("ab") == {"3-ab01", "4-ab02"}


def test_a_start_finds_out_whether_the_bucket_can_be_used(s3: S3Server, url: str, tmp_path: Path) -> None:
    right = s3.storage(tmp_path / "cache", outage_seconds=0)
    before = s3.object_names()
    open_weight_store(url, right).probe(writes=True)
    assert s3.object_names() == before
    with pytest.raises(ConfigurationError, match="there is no such bucket"):
        open_weight_store("s3://mistyped/weights", right).probe(writes=False)
    for name, value in {"access_key_id": "mistyped", "secret_access_key": "mistyped"}.items():
        wrong = right.model_copy(update={"options": {**right.options, name: SecretStr(value)}})
        with pytest.raises(ConfigurationError, match=rf"may not list {url}: .*check the keys") as refused:
            open_weight_store(url, wrong).probe(writes=False)
        assert SECRET not in str(refused.value)
    away = right.model_copy(update={"options": {**right.options, "endpoint": SecretStr("http://127.0.0.1:9")}})
    with pytest.raises(WeightStoreError, match=r"could not list .*127\.0\.0\.1:9") as unreachable:
        open_weight_store(url, away).probe(writes=False)
    assert "\n" not in str(unreachable.value)
    assert SECRET not in str(unreachable.value)


def test_doctor_checks_the_buckets_of_a_run_and_asks_for_a_rule_against_torn_uploads(
    s3: S3Server, url: str, tmp_path: Path
) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(
        f'run = "demo"\nweight_store = "{url}"\n[storage]\nallow_http = true\noutage_seconds = 0\n'
        f'[storage.options]\nendpoint = "{s3.endpoint}"\naccess_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\n'
        '[trainer]\nmodel_path = "model"\ncheckpoints = "s3://mistyped/checkpoints"\n'
    )
    weights, checkpoints = doctor.examine(tmp_path, config)[-2:]
    assert (weights.name, weights.verdict) == ("s3", doctor.CheckVerdict.OK)
    assert "incomplete multipart uploads" in weights.advice
    assert checkpoints.verdict is doctor.CheckVerdict.FAILED
    assert "there is no such bucket" in checkpoints.advice


def test_a_silent_server_is_given_up_after_the_deadline(tmp_path: Path, url: str) -> None:
    with an_s3_server(tmp_path) as server:
        assert server.process is not None
        store = open_weight_store(url, server.storage(tmp_path / "cache", timeout_seconds=1, outage_seconds=2))
        os.kill(server.process.pid, 19)  # SIGSTOP
        began = time.monotonic()
        with pytest.raises(WeightStoreError, match="could not list"):
            store.names("abc")
        assert time.monotonic() - began < 30


def test_options_that_nobody_knows_are_refused_without_their_values(s3: S3Server, url: str, tmp_path: Path) -> None:
    right = s3.storage(tmp_path / "cache")
    mistyped = right.model_copy(update={"options": {**right.options, "secret_acess_key": SecretStr("hunter2")}})
    with pytest.raises(ConfigurationError, match="secret_acess_key") as refused:
        open_weight_store(url, mistyped)
    assert "hunter2" not in str(refused.value)


def test_without_keys_nobody_is_asked_for_some(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match="no keys for s3://"):
        open_weight_store(url, StorageSettings(cache=tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert isinstance(open_weight_store(url, StorageSettings(cache=tmp_path)), BucketWeightStore)
