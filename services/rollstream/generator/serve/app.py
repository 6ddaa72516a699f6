"""The application that a serving generator answers clients with.

With vLLM it is vLLM's own routes. Other engines have a route for chat completions alone.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from uvicorn._types import ASGI3Application

from rollstream.engines.protocol import Engine
from rollstream.generator.serve.asking import CallLayer
from rollstream.generator.serve.call import Recorder
from rollstream.generator.serve.lane import ServingLane
from rollstream.generator.settings import GeneratorSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """`app` stands in the guard of `rollstream.http`, with `asking.ROUTES` and `asking.STRIPPED_HEADERS`.

    `settled` waits until no answer is in work any more, those included whose clients have left. `require_engine` raises
    `EngineDeadError` if the engine will never answer again: its process must end, also if nothing is asked of it.
    """

    app: ASGI3Application
    settled: Callable[[], Awaitable[None]]
    require_engine: Callable[[], None]


async def build_app(engine: Engine, settings: GeneratorSettings, recorder: Recorder) -> Application:
    """The application over `engine`, which has started. Imports vLLM's routes only if it is vLLM."""
    serve, name = settings.serve, settings.serve.model_name or settings.model
    lane = ServingLane(settings.engine.samples_at_once, serve.max_waiting)
    routes: ASGI3Application
    if settings.engine.kind == "vllm":
        from rollstream.engines.vllm.engine import VllmEngine
        from rollstream.generator.serve.recording import RecordingEngine, Serving
        from rollstream.generator.serve.vllm import vllm_routes

        assert isinstance(engine, VllmEngine)
        serving = Serving(
            engine=engine,
            lane=lane,
            recorder=recorder,
            when_client_leaves=serve.when_client_leaves,
            answer_seconds=serve.answer_seconds,
        )
        recording = RecordingEngine(serving)
        routes = cast(ASGI3Application, await vllm_routes(recording, serve, settings.engine, name))
        settled, require_engine = recording.settled, engine.require_alive
    else:
        from rollstream.generator.serve.plain_route import PlainRoutes

        plain = PlainRoutes(engine, lane, recorder, serve, name)
        routes, settled = plain, plain.settled

        def require_engine() -> None:
            """Those that can die say so when a prompt is asked."""

    layer = CallLayer(
        routes,
        lane=lane,
        recorder=recorder,
        subject_secret=serve.subject_secret,
        reads_control_tokens=settings.engine.kind == "vllm",
    )
    return Application(app=layer, settled=settled, require_engine=require_engine)
