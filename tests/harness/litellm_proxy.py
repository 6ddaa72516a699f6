"""The real LiteLLM proxy in front of a server, in an environment of its own: it needs an older rich than ours."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollstream.local.ports import free_ports
from tests.harness.http_servers import serving

VERSION = "1.106.2"
ALIAS = "claude-sonnet"
_KEPT = Path.home() / ".cache/rollstream-tests" / f"litellm-{VERSION}"
KEY = "sk-of-this-test-only-0123456789abcdef"
_ENVIRONMENT = {
    # It does not start without one.
    "LITELLM_MASTER_KEY": KEY,
    # It would fetch its price list.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
}


def installed_litellm() -> Path:
    """Its program; installed on the first call, which takes a minute or two, and kept in the user's cache."""
    program = _KEPT / "bin/litellm"
    if not program.exists():
        uv = shutil.which("uv")
        assert uv is not None, "uv must be on the PATH, to make an environment for LiteLLM"
        subprocess.run([uv, "venv", "--clear", "--python", sys.executable, str(_KEPT)], check=True, timeout=60)
        python = str(_KEPT / "bin/python")
        wanted = f"litellm[proxy]=={VERSION}"
        subprocess.run([uv, "pip", "install", "--python", python, wanted], check=True, timeout=600)
    return program


@contextmanager
def litellm_proxy(server: str, model: str, folder: Path) -> Iterator[str]:
    """Its URL, once it is ready: it knows `model` of `server`, an OpenAI-compatible one, as `ALIAS`."""
    config = folder / "litellm_config.yaml"
    known = {"model": f"openai/{model}", "api_base": f"{server}/v1", "api_key": "none"}
    # JSON is YAML too.
    config.write_text(json.dumps({"model_list": [{"model_name": ALIAS, "litellm_params": known}]}))
    port = free_ports(1)[0]
    command = [str(installed_litellm()), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with serving(command, f"{url}/health/readiness", log=folder / "litellm.log", env=_ENVIRONMENT):
        yield url
