"""Kafka's jars in the user's cache: checked at every start, fetched again where they are damaged."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from rollstream.local.kafka_jars import LOCK, kafka_class_path, kafka_libraries, locked_jars, unusable_jars
from rollstream.schemas.errors import JarsUnusableError

SMALL_JAR = "kafka-tools-api"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache of this test's own with all jars in it."""
    kafka_class_path()
    shutil.copytree(kafka_libraries(), kafka_libraries(tmp_path))
    return tmp_path


def damaged_jar(cache: Path) -> Path:
    jar = next(kafka_libraries(cache).glob(f"{SMALL_JAR}-*.jar"))
    jar.write_bytes(jar.read_bytes()[:1000])
    return jar


def test_a_half_downloaded_jar_is_named_and_fetched_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    jar = damaged_jar(cache)
    kept = next(kafka_libraries(cache).glob("scala-library-*.jar"))
    before = kept.stat().st_mtime_ns
    class_path = kafka_class_path(cache)
    assert str(jar) in caplog.text
    assert "1000 bytes with sha256" in caplog.text
    assert len(class_path.split(":")) == len(locked_jars())
    assert not unusable_jars(kafka_libraries(cache), locked_jars())
    assert kept.stat().st_mtime_ns == before


def test_without_a_network_the_error_names_the_jar_and_what_it_needs(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged_jar(cache)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(
        JarsUnusableError, match=rf"could not fetch org.apache.kafka:{SMALL_JAR}:.*reachable.*try again"
    ):
        kafka_class_path(cache)


def test_a_jar_that_is_not_the_committed_one_is_refused(cache: Path) -> None:
    lock = cache / "jgo.lock.toml"
    wanted = next(jar for jar in locked_jars() if jar.artifact == SMALL_JAR)
    lock.write_text(LOCK.read_text().replace(wanted.sha256, "0" * 64))
    kafka_libraries(cache).rename(kafka_libraries(cache, lock))
    with pytest.raises(JarsUnusableError, match=rf"(?s)not the committed ones.*{SMALL_JAR}.*the lock says 0000"):
        kafka_class_path(cache, lock)


@pytest.mark.slow
def test_the_lock_is_what_jgo_resolves_the_specification_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jgo.env import EnvironmentBuilder, EnvironmentSpec
    from jgo.maven import MavenContext

    monkeypatch.chdir(tmp_path)
    context = MavenContext(repo_cache=tmp_path / "maven")
    builder = EnvironmentBuilder(context=context, cache_dir=tmp_path / "cache")
    resolved = builder.from_spec(EnvironmentSpec.load(LOCK.with_name("jgo.toml")))
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in resolved.all_jars}
    assert found == {jar.file_name: jar.sha256 for jar in locked_jars()}
