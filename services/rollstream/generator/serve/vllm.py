"""vLLM's own HTTP routes over the engine that trains. The only file that imports vLLM's entrypoints.

None of these imports is a promised interface: `tests/engines/test_serve_routes.py` has a contract test for each route.
vLLM's `build_app` is not used: it adds routes that control the engine, and its check of keys does not know x-api-key.
"""

from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from vllm.entrypoints.anthropic import api_router as anthropic
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion import api_router as chat
from vllm.entrypoints.openai.completion import api_router as completion
from vllm.entrypoints.openai.models import api_router as models
from vllm.entrypoints.openai.responses import api_router as responses
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.utils.argparse_utils import FlexibleArgumentParser

from rollstream.engines.settings import EngineSettings
from rollstream.generator.serve.recording import RecordingEngine
from rollstream.generator.serve.settings import ServeSettings

_ROUTERS: Final = (chat, completion, responses, models, anthropic)


@dataclass(slots=True)
class _Server:
    """What vLLM's handler of a dead engine sets; the generator ends by itself then."""

    should_exit: bool = False


async def vllm_routes(engine: RecordingEngine, settings: ServeSettings, model: EngineSettings, name: str) -> FastAPI:
    """The routes; `name` is what clients call the model."""
    arguments = ["--model", str(model.model_path), "--served-model-name", name, "--disable-log-stats"]
    if settings.tool_call_parser is not None:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.args = args
    app.state.server = _Server()
    for router in _ROUTERS:
        router.attach_router(app)
    init_exception_handler(app)
    # The proxy is all that they ask of an engine.
    client: Any = engine
    await init_app_state(client, app.state, args, ("generate",))
    return app
