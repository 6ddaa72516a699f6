"""Settings of the generator, TOML table `[generator]`."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from rollstream.engines.others import OtherEngines
from rollstream.engines.settings import EngineSettings
from rollstream.engines.vllm.places import NO_RESERVE, Reserve
from rollstream.generator.serve.settings import ServeSettings
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.addresses import is_bucket


class GeneratorSettings(StageSettings):
    """What one generator process needs."""

    table: ClassVar[str] = "generator"

    engine: EngineSettings = Field(description="Which engine, and how it runs")
    engines: OtherEngines = Field(
        default_factory=dict,
        max_length=16,
        description="Models beside the policy, by the names that agents' options have for them, e.g. `summarizer` of "
        "`reasoning_cache`; each of kind openai_http. They speak text, and their turns never train",
    )
    serve: ServeSettings = Field(default_factory=ServeSettings, description="The HTTP endpoint, off by default")
    generator_id: str = Field(default="", description="Unique per process; empty: host name and process id")
    max_tokens_in_flight: int | None = Field(
        default=None,
        ge=1,
        description="Bound on the sum of max_tokens (at most what the model takes) of the samples taken and not ended; "
        "default: tokens are not counted, and 1.5 times the samples are taken that the engine runs side by side "
        "(engine.max_num_seqs; openai_http: engine.http.max_connections)",
    )
    sample_deadline_seconds: float = Field(
        default=600.0,
        gt=0,
        description="A sample that is not done by then ends, seconds: with its tokens so far as truncated (completed, "
        "finish reason length), or without any as unresolved; openai_http has none",
    )
    progress_tokens: int = Field(
        default=2048,
        ge=0,
        le=2**31 - 1,
        description="A longer turn is asked in pieces of so many tokens and kept on `progress` after each, so that "
        "another generator goes on with it if this one is killed; 0: whole turns are kept alone",
    )
    max_tries: int = Field(default=2, ge=1, le=10, description="Tries at a sample that the engine did not resolve")
    evaluation_hold_seconds: float = Field(
        default=60.0,
        ge=0,
        description="How long running evaluation samples may hold back a newer version, and how long others wait for "
        "the published version that they name, seconds",
    )

    @property
    def reserve(self) -> Reserve:
        """Of the requests that run side by side, those that training leaves to clients."""
        if not self.serve.enabled:
            return NO_RESERVE
        usual = max(1, self.engine.max_num_seqs // 8)
        num_places = usual if self.serve.reserve is None else self.serve.reserve
        return Reserve(num_places=num_places, lend_after_seconds=self.serve.lend_after_seconds)

    @model_validator(mode="after")
    def _leave_training_a_place(self) -> Self:
        if self.reserve.num_places and self.reserve.num_places >= self.engine.max_num_seqs:
            raise ValueError(
                f"serve.reserve {self.reserve.num_places} leaves training none of engine.max_num_seqs "
                f"{self.engine.max_num_seqs}: lower it, or raise max_num_seqs"
            )
        return self

    @model_validator(mode="after")
    def _follow_the_policy(self) -> Self:
        if self.engine.kind == "openai_http" and self.engine.http.weight_updates == "none":
            raise ValueError(
                "engine.http.weight_updates 'none': the servers would keep their weights while the run's policy moves "
                "on; set 'vllm' or 'sglang', or generate with `rollstream collect`, which follows no policy"
            )
        return self

    @model_validator(mode="after")
    def _reach_the_weights_everywhere(self) -> Self:
        if self.engine.nodes.count > 1 and is_bucket(self.weight_store):
            raise ValueError(
                f"engine.nodes.count {self.engine.nodes.count} with a weight_store in an object store: every machine "
                "reads a version's files at the same path, so weight_store must be a directory that all of them mount"
            )
        return self
