"""Where weights and checkpoints may be: a directory or a URL. A mistake is named, what was written is never shown."""

from pathlib import Path

import pytest

from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.weight_store import directory_name, open_weight_store
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.addresses import checked_location, is_bucket
from rollstream.schemas.errors import ConfigurationError


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
