"""vLLM's own OpenAI-compatible server on the CPU, as a child process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollstream.local.ports import free_ports
from tests.harness.engine_fixtures import MAX_MODEL_LEN, MAX_NUM_SEQS
from tests.harness.http_servers import serving

MODEL_NAME = "tiny"
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
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "tests.harness.vllm_forked", "--model", str(model)]
    command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(2**26), "--logprobs-mode", "processed_logprobs", *options]
    url = f"http://127.0.0.1:{port}"
    with serving(command, f"{url}/health", log=log, env=_ENVIRONMENT):
        yield url
