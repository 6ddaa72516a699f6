"""Makes the engine that the settings name. Only the libraries of that engine are imported."""

from typing import assert_never

from rollstream.engines.model_directory import read_config
from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.engines.vllm.places import NO_RESERVE, Reserve


def build_engine(settings: EngineSettings, reserve: Reserve = NO_RESERVE) -> Engine:
    """The engine that `settings.kind` names, not started.

    `reserve`: of the requests that vLLM runs side by side, those that `generate` leaves to clients.

    Raises `ConfigurationError` if `settings.model_path` holds no model.
    """
    if settings.kind not in ("scripted", "openai_http"):
        read_config(settings.model_path)  # before libraries are imported, which takes long
    match settings.kind:
        case "vllm":
            from rollstream.engines.vllm.engine import VllmEngine

            return VllmEngine(settings, reserve)
        case "transformers":
            from rollstream.engines.transformers_engine import TransformersEngine

            return TransformersEngine(settings)
        case "scripted":
            from rollstream.engines.scripted import ScriptedEngine

            return ScriptedEngine(settings)
        case "openai_http":
            from rollstream.engines.http.engine import OpenAiHttpEngine

            return OpenAiHttpEngine(settings)
        case _:
            assert_never(settings.kind)
