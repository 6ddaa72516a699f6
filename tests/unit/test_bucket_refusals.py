"""What an object store refuses: at first a mistake in the settings, after a success an outage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollstream.history.bucket import Bucket
from rollstream.history.weight_store import WeightStore, open_weight_store
from rollstream.schemas.errors import ConfigurationError, WeightStoreError
from tests.harness.small_s3 import SKEWED, SmallS3, a_small_s3

# So long that an address of the library fills a line of a log before it says what happened.
URL = f"s3://bucket/{'a-long-name-of-a-team/' * 8}weights"
SAID = f"403 Forbidden: RequestTimeTooSkewed: {SKEWED}"


@pytest.fixture
def s3() -> Iterator[SmallS3]:
    with a_small_s3() as server:
        yield server


def a_store(s3: SmallS3, tmp_path: Path, outage_seconds: float = 30) -> WeightStore:
    return open_weight_store(URL, s3.storage(tmp_path / "cache", outage_seconds))


def save(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights" * 100)


@pytest.mark.parametrize("writes", [False, True])
def test_a_refusal_before_any_success_is_a_mistake_that_a_person_must_mend(
    s3: SmallS3, tmp_path: Path, writes: bool
) -> None:
    s3.refusals = -1
    with pytest.raises(ConfigurationError) as refused:
        a_store(s3, tmp_path).probe(writes=writes)
    assert SAID in str(refused.value)
    assert "machine's clock" in str(refused.value)
    assert s3.refused == 1


def test_the_right_to_read_says_nothing_of_the_right_to_write(s3: SmallS3, tmp_path: Path) -> None:
    store = a_store(s3, tmp_path)
    store.probe(writes=False)
    s3.refusals = -1
    with pytest.raises(ConfigurationError, match="may not write to"):
        store.write("3-abc", save)


def test_a_refusal_that_passes_is_ridden_out_in_both_directions(s3: SmallS3, tmp_path: Path) -> None:
    store = a_store(s3, tmp_path)
    store.probe(writes=True)
    s3.refusals = 2
    stored = store.write("3-abc", save)
    assert s3.refused == 2
    s3.refusals = 3
    directory = store.fetch(stored.uri, stored.files)
    assert (directory / "model.safetensors").read_bytes() == b"weights" * 100
    s3.refusals = 1
    assert store.names("abc") == {"3-abc"}


def test_a_refusal_that_stays_is_an_outage_of_the_store(s3: SmallS3, tmp_path: Path) -> None:
    store = a_store(s3, tmp_path, outage_seconds=0.5)
    store.probe(writes=True)
    s3.refusals = -1
    with pytest.raises(WeightStoreError, match=r"may not list .*allowed before, and refused for 0\.5 s now") as ended:
        store.names("abc")
    assert ended.value.exit_code == 70
    assert SAID in str(ended.value)
    assert s3.refused >= 2


def test_an_outage_while_a_bucket_is_listed_keeps_its_cause(s3: SmallS3, tmp_path: Path) -> None:
    bucket = Bucket(URL, s3.storage(tmp_path / "cache", 0.5))
    assert bucket.names() == []
    s3.refusals = -1
    with pytest.raises(WeightStoreError, match="may not list") as ended:
        bucket.names()
    assert isinstance(ended.value.__cause__, ConfigurationError)


def test_whether_a_version_is_there_is_not_waited_for(s3: SmallS3, tmp_path: Path) -> None:
    store = a_store(s3, tmp_path)
    store.probe(writes=True)
    s3.refusals = -1
    assert store.holds(f"{URL}/3-abc") is None
    assert s3.refused == 1


@pytest.mark.parametrize("other", [b"", b"other", b"a far longer content than before"])
def test_an_object_is_created_once_and_what_is_there_already_may_be_the_same(
    s3: SmallS3, tmp_path: Path, other: bytes
) -> None:
    bucket = Bucket(URL, s3.storage(tmp_path / "cache", 5))
    for _ in range(2):  # as after an answer that was lost
        bucket.create("manifest", b"content")
    s3.objects.update(dict.fromkeys(s3.objects, other))
    with pytest.raises(FileExistsError, match="manifest already exists"):
        bucket.create("manifest", b"content")
