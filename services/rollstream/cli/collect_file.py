"""The settings file of `collect`: that of a run, or one that only names a cluster, an engine, or what is declared."""

from typing import Self

from pydantic import Field, model_validator

from rollstream.engines.settings import EngineSettings
from rollstream.generator.settings import GeneratorSettings


class CollectFileSettings(GeneratorSettings):
    """A generator's settings, without what binds it to a policy: servers may keep their weights, and be named later."""

    engine: EngineSettings | None = Field(  # type: ignore[assignment]  # options may name it instead
        default=None, description="Which engine, and how it runs; default: what --model and --url say"
    )

    @model_validator(mode="after")
    def _follow_the_policy(self) -> Self:
        return self

    @model_validator(mode="after")
    def _reach_the_weights_everywhere(self) -> Self:
        return self
