"""vLLM's own OpenAI-compatible server on the CPU, as a child process."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.harness.engine_fixtures import MAX_MODEL_LEN, MAX_NUM_SEQS
from tests.harness.processes import start_process
from tests.harness.waits import wait_until

MODEL_NAME = "tiny"
# Its imports alone take half a minute where nothing else runs.
_START_SECONDS = 280.0
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    # Its routes for weights.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@contextmanager
def a_vllm_server(model: Path, log: Path, *options: str) -> Iterator[str]:
    """Its base URL, once it is ready. `options`: further ones of vLLM's."""
    port = _free_port()
    command = [sys.executable, "-m", "tests.harness.vllm_forked", "--model", str(model)]
    command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(2**26), "--logprobs-mode", "processed_logprobs", *options]
    server = start_process(command, log=log, env=_ENVIRONMENT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(
            lambda: server.has_ended or _is_ready(url),
            lambda: f"vLLM's server to be ready; log:\n{server.said()[-3000:]}",
            _START_SECONDS,
            every_seconds=0.5,
        )
        assert not server.has_ended, server.said()[-3000:]
        yield url
    finally:
        try:
            server.terminate()
        finally:
            server.kill()  # one that is still starting may not answer to the other signal


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
