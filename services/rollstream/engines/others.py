"""The models beside the policy that the settings declare, which agents may ask by name."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from pydantic import AfterValidator

from rollstream.engines.build import build_engine
from rollstream.engines.protocol import Engine
from rollstream.engines.settings import EngineSettings
from rollstream.process.settings.declared import checked_name


def _speaks_text(settings: EngineSettings) -> EngineSettings:
    if settings.kind != "openai_http":
        raise ValueError(f"kind {settings.kind!r} is for the policy: another model is asked by kind 'openai_http'")
    if settings.http.tokenizer_path is not None or settings.http.weight_updates != "none":
        raise ValueError(
            "http.tokenizer_path and http.weight_updates are for the policy: another model is asked in text, and its "
            "turns never train; leave them out"
        )
    return settings


_Name = Annotated[str, AfterValidator(checked_name)]
OtherEngines = dict[_Name, Annotated[EngineSettings, AfterValidator(_speaks_text)]]
"""By the names that agents' options have for them."""


@asynccontextmanager
async def other_engines(declared: Mapping[str, EngineSettings]) -> AsyncIterator[dict[str, Engine]]:
    """The models by name, started, as long as the block runs. Raises what `Engine.start` raises."""
    async with AsyncExitStack() as stack:
        made: dict[str, Engine] = {}
        for name, settings in declared.items():
            made[name] = build_engine(settings)
            await made[name].start(weight_version=0)
            stack.push_async_callback(made[name].close)
        yield made
