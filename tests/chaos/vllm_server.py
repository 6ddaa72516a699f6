"""Starts and stops vLLM's own OpenAI-compatible server on this machine, so that its weights can be replaced."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from rollstream.local.ports import HOST, require_free
from rollstream.local.processes import ChildProcess, failed_start

SERVED_MODEL: Final = "policy"
START_SECONDS: Final = 600.0
_LOOK_EVERY_SECONDS: Final = 0.25
_STOP_GRACE_SECONDS: Final = 10.0
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Its routes for weights.
    "VLLM_SERVER_DEV_MODE": "1",
    # Its worker then runs in the engine's process: one process less that imports everything.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


class VllmServer:
    """One server of a tiny model on `port`, on the CPU. Its log is in `directory`."""

    def __init__(self, directory: Path, port: int, model: Path, *, max_model_len: int) -> None:
        self._log = directory.resolve() / f"vllm-{port}.log"
        self._port = port
        self._words = _words(port, model, max_model_len)
        # Sockets are made in it, whose paths are bounded; kill -9 leaves them.
        self._temporary = Path(tempfile.mkdtemp(prefix="vllm-server-"))
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Its address, with or without the server."""
        return f"http://{HOST}:{self._port}"

    @property
    def is_running(self) -> bool:
        """Whether its process runs; it may not be ready."""
        return self._process is not None and self._process.is_running()

    def launch(self) -> None:
        """Start it if it does not run. It is ready a minute later, see `wait_ready`."""
        if self.is_running:
            return
        require_free(self._port, "vLLM")
        environment = {**os.environ, **_ENVIRONMENT, "TMPDIR": str(self._temporary)}
        self._process = ChildProcess.start(self._words, self._log, env=environment)

    def wait_ready(self) -> None:
        """Wait until it answers; raises `StartFailedError` if it ends before, or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self.is_healthy():
            if not self.is_running or time.monotonic() > deadline:
                raise failed_start(f"vLLM's server was not ready on port {self._port}", self._log)
            time.sleep(_LOOK_EVERY_SECONDS)

    def kill(self) -> None:
        """kill -9 of all its processes."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; nothing of it is left."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_STOP_GRACE_SECONDS)
        self.kill()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def is_healthy(self) -> bool:
        """Whether it answers, and its engine runs."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _words(port: int, model: Path, max_model_len: int) -> list[str]:
    # `vllm serve` does not run with the CPU wheel.
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", HOST, "--port", str(port)]
    words += ["--model", str(model), "--served-model-name", SERVED_MODEL, "--dtype", "float32"]
    words += ["--max-model-len", str(max_model_len), "--max-num-seqs", "32", "--kv-cache-memory-bytes", str(2**26)]
    words += ["--enforce-eager", "--logprobs-mode", "processed_logprobs"]
    # vLLM's own reload leaves a tied output head as it was on a CPU.
    return [*words, "--worker-extension-cls", "rollstream.engines.vllm.worker.ReloadExtension"]
