"""Downloads Kafka's jars from Maven with jgo, once per user: exactly those of the committed lock file."""

import hashlib
import logging
import os
import shutil
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rollstream.process.files import move, sha256_of, waited_for
from rollstream.schemas.errors import JarsUnusableError

LOCK = Path(__file__).with_name("jgo.lock.toml")
HTTP_TIMEOUT_SECONDS = 60
PARALLEL_DOWNLOADS = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedJar:
    """One jar, as the lock file describes it."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def locked_jars(lock: Path = LOCK) -> tuple[LockedJar, ...]:
    """The jars of the committed lock, in its order."""
    dependencies = tomllib.loads(lock.read_text())["dependencies"]
    return tuple(
        LockedJar(group=d["groupId"], artifact=d["artifactId"], version=d["version"], sha256=d["sha256"])
        for d in dependencies
    )


def user_cache() -> Path:
    """The user's cache directory of rollstream ($XDG_CACHE_HOME or ~/.cache, then `rollstream`)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollstream"


def kafka_libraries(cache: Path | None = None, lock: Path = LOCK) -> Path:
    """The directory for the jars of this lock file, which may not exist yet. `cache` None: `user_cache()`."""
    return (cache or user_cache()) / "kafka" / hashlib.sha256(lock.read_bytes()).hexdigest()[:12]


def unusable_jars(libs: Path, jars: Sequence[LockedJar]) -> dict[LockedJar, str]:
    """The jars that are missing in `libs` or have another content, and what is wrong with each."""
    found = {jar: _fault(libs / jar.file_name, jar.sha256) for jar in jars}
    return {jar: fault for jar, fault in found.items() if fault}


def _fault(path: Path, sha256: str) -> str:
    if not path.exists():
        return "missing"
    actual = sha256_of(path)
    if actual == sha256:
        return ""
    return f"{path.stat().st_size} bytes with sha256 {actual[:16]}…, the lock says {sha256[:16]}…"


def kafka_class_path(cache: Path | None = None, lock: Path = LOCK) -> str:
    """Java's class path of a Kafka broker. Each call checks every jar against the lock file (0.1 s).

    Jars that are missing or changed are downloaded again; a warning names each changed one.
    Raises JarsUnusableError if they are still missing or changed after that.
    """
    jars = locked_jars(lock)
    libs = kafka_libraries(cache, lock)
    if unusable_jars(libs, jars):
        libs.mkdir(parents=True, exist_ok=True)
        # Only one process at a time downloads. The others wait and find its result.
        with waited_for(libs.with_suffix(".lock")):
            _repair(libs, jars)
    return os.pathsep.join(str(libs / jar.file_name) for jar in jars)


def _repair(libs: Path, jars: Sequence[LockedJar]) -> None:
    wanted = unusable_jars(libs, jars)
    for jar, fault in wanted.items():
        if fault != "missing":
            logger.warning("Kafka's jar %s is damaged (%s): fetching it again", libs / jar.file_name, fault)
    if wanted:
        logger.info("fetching %d of Kafka's %d jars from Maven into %s", len(wanted), len(jars), libs)
        _fetch(libs, list(wanted))
    if still := unusable_jars(libs, jars):
        faults = "\n  ".join(f"{jar}: {fault}" for jar, fault in still.items())
        raise JarsUnusableError(
            f"Maven served jars that are not the committed ones; nothing was started:\n  {faults}\n"
            f"Check for a proxy or mirror that rewrites downloads, remove {libs}, and try again."
        )


def _fetch(libs: Path, jars: Sequence[LockedJar]) -> None:
    """Download into a scratch directory, and move each complete jar to `libs`.

    So a download that is killed leaves no half jar in `libs`.
    """
    # Here and not at the top: it takes 0.4 s, and most starts download nothing.
    from jgo.maven import MavenContext

    scratch = libs.with_suffix(".download")
    shutil.rmtree(scratch, ignore_errors=True)
    context = MavenContext(repo_cache=scratch, timeout=HTTP_TIMEOUT_SECONDS)

    def fetch(jar: LockedJar) -> None:
        component = context.project(jar.group, jar.artifact).at_version(jar.version)
        try:
            downloaded: Path = component.artifact().resolve()
            move(downloaded, libs / jar.file_name)
        except (OSError, RuntimeError) as error:
            raise JarsUnusableError(
                f"could not fetch {jar} into {libs}: {error}. It needs {', '.join(context.remote_repos.values())} "
                "to be reachable and room on the disk; jars fetched so far are kept, so just try again."
            ) from error

    try:
        with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
            list(pool.map(fetch, jars))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
