"""vLLM's own server, whose two further processes are forked: spawned ones would import everything again.

`python -m tests.harness.vllm_forked OPTIONS`, with the options of `vllm serve`.
"""

import os
import runpy
from typing import Any

from vllm import AsyncEngineArgs

_create_engine_config = AsyncEngineArgs.create_engine_config


def _then_fork(*arguments: Any, **named: Any) -> Any:
    """On a CPU vLLM sets spawn while it makes its configuration; our own engine sets fork after it too."""
    config = _create_engine_config(*arguments, **named)
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return config


if __name__ == "__main__":
    AsyncEngineArgs.create_engine_config = _then_fork  # type: ignore[method-assign]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
