"""The engines of a campaign's generators: scripted ones, vLLM, and vLLM's own server asked over HTTP.

Whoever joins later, or stands in for one that is suspended, has a scripted engine: vLLM would hardly be ready before it
leaves, and a server belongs to one generator.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rollstream.local.ports import free_ports
from tests.bench.tasks import COIN_PATH
from tests.chaos.small_run import MODEL_LENGTH
from tests.chaos.vllm_server import SERVED_MODEL, START_SECONDS, VllmServer

EngineKind = Literal["scripted", "vllm", "openai_http"]
_GENERATES: Final = b' generates"'
_PREFIX: Final = "ROLLSTREAM_ENGINE__"
_VLLM: Final = {
    f"{_PREFIX}KIND": "vllm",
    f"{_PREFIX}ENFORCE_EAGER": "true",
    f"{_PREFIX}MAX_NUM_SEQS": "32",
    f"{_PREFIX}KV_CACHE_BYTES": str(2**26),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True, slots=True)
class Generators:
    """The generators that a campaign starts with, by their names: what each has in its environment, and its server."""

    environments: Mapping[str, Mapping[str, str]]
    servers: Mapping[str, VllmServer]

    def has_begun(self, name: str, log: Path) -> bool:
        """Whether this process is past its start, by its log. Only an engine that is not scripted takes long in it."""
        return not self.environments.get(name) or _GENERATES in log.read_bytes()


@contextmanager
def generators_of(kinds: Sequence[EngineKind], run_dir: Path) -> Iterator[Generators]:
    """What these generators need, as long as the block runs; servers are ready. Raises a `LocalStackError`."""
    model = run_dir / "model"
    names = {f"generator-{number}": kind for number, kind in enumerate(kinds)}
    asking = [name for name, kind in names.items() if kind == "openai_http"]
    servers = {
        name: VllmServer(run_dir / "logs", port, model, max_model_len=MODEL_LENGTH)
        for name, port in zip(asking, free_ports(len(asking)), strict=True)
    }
    try:
        for server in servers.values():
            server.launch()
        for server in servers.values():
            server.wait_ready()
        environments = {name: _environment(kind, servers.get(name), run_dir) for name, kind in names.items()}
        yield Generators(environments, servers)
    finally:
        for server in servers.values():
            server.stop()


def needs_vllm(kinds: Sequence[EngineKind]) -> bool:
    """Whether one of these engines takes vLLM's time to start."""
    return set(kinds) != {"scripted"}


def settings_of(kinds: Sequence[EngineKind]) -> dict[str, dict[str, Any]]:
    """What the run's file needs for these engines beside what the scripted one needs, by table.

    A model with random weights never sorts digits. A coin as reward gives groups spread whatever it answers, a small
    rate keeps it from learning the coin, and within 24 tokens most groups have an answer that ends.
    """
    if not needs_vllm(kinds):
        return {"shared": {}, "producer": {}, "learning": {}}
    return {
        "shared": {"environments": {"coin": {"path": COIN_PATH, "options": {"starts": "0123456789"}}}},
        "producer": {"environment": "coin", "sampling": {"temperature": 1.0, "max_tokens": 24}},
        "learning": {"learning_rate": 0.00001},
    }


def _environment(kind: EngineKind, server: VllmServer | None, run_dir: Path) -> Mapping[str, str]:
    if server is None:
        return _VLLM if kind == "vllm" else {}
    http = {
        "urls": [server.url],
        "model": SERVED_MODEL,
        "tokenizer_path": str(run_dir / "model"),
        "weight_updates": "vllm",
        "ready_seconds": START_SECONDS,
    }
    return {f"{_PREFIX}KIND": kind, f"{_PREFIX}HTTP": json.dumps(http)}
