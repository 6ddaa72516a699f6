"""vLLM's own OpenAI-compatible server on the CPU, forked from the process that engines are forked from too."""

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rollstream.local.ports import free_ports
from tests.harness.engine_fixtures import MAX_MODEL_LEN, MAX_NUM_SEQS
from tests.harness.engine_host import EngineNursery
from tests.harness.http_servers import ready

MODEL_NAME = "tiny"
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Its routes for weights.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@contextmanager
def a_vllm_server(nursery: EngineNursery, model: Path, log: Path, *options: str) -> Iterator[str]:
    """Its base URL, once it is ready. `options`: further ones of vLLM's."""
    port = free_ports(1)[0]
    words = ["--model", str(model)]
    words += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    words += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), "--enforce-eager"]
    words += ["--kv-cache-memory-bytes", str(2**26), "--logprobs-mode", "processed_logprobs", *options]
    log.touch()
    server, pipe = nursery.fork(partial(be_vllm_server, words, log), log)
    with pipe, ready(server, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"


def be_vllm_server(words: list[str], log: Path, _pipe: Connection) -> None:
    """Be `vllm serve WORDS` in this process, whose two further processes are forked.

    Spawned ones would import everything again.
    """
    from vllm import AsyncEngineArgs

    os.environ.update(_ENVIRONMENT)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    create_engine_config = AsyncEngineArgs.create_engine_config

    def then_fork(*arguments: Any, **named: Any) -> Any:
        # On a CPU vLLM sets spawn while it makes its configuration; our own engine sets fork after it too.
        config = create_engine_config(*arguments, **named)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        return config

    AsyncEngineArgs.create_engine_config = then_fork  # type: ignore[method-assign]
    sys.argv = ["vllm", *words]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
