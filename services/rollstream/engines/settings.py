"""Settings of an engine, TOML table `[generator.engine]`."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollstream.engines.http.settings import HttpSettings


class ScriptedSettings(BaseModel):
    """How the scripted engine answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    correct_ratio: float = Field(default=0.5, ge=0, le=1, description="Probability of a right answer at version 0")
    correct_ratio_gain: float = Field(default=0.0, ge=0, le=1, description="Added to it per weight version, up to 1")
    token_seconds: float = Field(default=0.0, ge=0, description="Time that each token takes, seconds")
    tokens_at_once: int = Field(
        default=1,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Tokens that come together, after the time of them all: fewer pauses where many samples run",
    )
    answer_tokens_median: float | None = Field(
        default=None,
        ge=1,
        le=2**20,
        json_schema_extra={"unit": "tokens"},
        description="Median of log-normal lengths, to which answers are filled with spaces; default: not filled",
    )
    answer_tokens_sigma_of_prompts: float = Field(
        default=0.0, ge=0, le=4, description="Standard deviation between prompts of the logarithm of the length"
    )
    answer_tokens_sigma_of_samples: float = Field(
        default=0.0, ge=0, le=4, description="The same between the answers to one prompt"
    )


class NodesSettings(BaseModel):
    """Machines that one vLLM engine spans. What starts their processes ends them all when one of them ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=1, ge=1, le=64, json_schema_extra={"unit": "machines"}, description="How many")
    rank: int = Field(
        default=0,
        ge=0,
        le=63,
        description="Which of them this process is on: 0 is the generator, the others only lend it their GPUs",
    )
    leader: str = Field(
        default="127.0.0.1", min_length=1, max_length=253, description="Address of the generator's machine"
    )
    port: int = Field(
        default=29501, ge=1, le=65535, description="Its port, where the other machines' processes meet it"
    )

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.rank >= self.count:
            raise ValueError(
                f"rank {self.rank} is none of {self.count} machines: they have the ranks 0 to {self.count - 1}"
            )
        return self


RendererName = Literal["", "glm-4.5", "hy3", "kimi-k2", "llama-3", "minimax-m2", "qwen3", "qwen3.5"]
"""Families of models that the package `renderers` knows, and of which the tests show that no text writes their tokens.

`gpt-oss` is none of them: it fetches a vocabulary from the network when it is made.
"""


class EngineSettings(BaseModel):
    """Which engine, and how it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: Literal["vllm", "transformers", "scripted", "openai_http"] = Field(
        default="vllm", description="Which engine; openai_http asks servers that run elsewhere"
    )
    model_path: Path = Field(
        description="Directory of the first weights, config and tokenizer (scripted: tokenizer; openai_http: none)"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Element type of the weights; auto is what the model's config says"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU where there is one")
    renderer: RendererName = Field(
        default="",
        description="Family of the model, whose own rules render its conversations, extend them by a turn and read its "
        "answers' thoughts and calls of tools, instead of its chat template; empty: the template. It is never guessed",
    )
    kv_after_update: Literal["keep", "recompute"] = Field(
        default="keep",
        description="After an update running requests keep their KV cache, or it is computed again by the new weights",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra={"unit": "tokens"},
        description="Most tokens of prompt and answer together; default: what the model allows",
    )
    max_num_seqs: int = Field(
        default=256,
        ge=1,
        json_schema_extra={"unit": "requests"},
        description="Most requests that generate side by side",
    )
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**20,
        json_schema_extra={"unit": "tokens"},
        description="Most tokens that vLLM computes in one step, of prompts and answers together, at least "
        "max_num_seqs; default: vLLM's choice",
    )
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        le=64,
        json_schema_extra={"unit": "GPUs"},
        description="GPUs that vLLM divides the model over; on a CPU processes. Must divide its heads",
    )
    nodes: NodesSettings = Field(
        default_factory=NodesSettings, description="Machines that these GPUs are on, where one has not enough"
    )
    gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of each GPU's memory that must be free when vLLM starts, and that it takes for weights and, "
        "unless kv_cache_bytes says how much, KV cache; default: vLLM's 0.92. Not for a CPU",
    )
    kv_cache_bytes: int | None = Field(
        default=None,
        ge=2**20,
        description="Size of vLLM's KV cache on each GPU, bytes; default: 256 MiB on a CPU, on a GPU what "
        "gpu_memory_utilization leaves",
    )
    enforce_eager: bool = Field(
        default=False, description="Do not compile vLLM's model: starts 10 to 30 s sooner, generates up to 1.7x slower"
    )
    vllm_metrics: bool = Field(
        default=False,
        description="Export vLLM's own metrics too, vllm:…, such as the time to the first token. A token then takes "
        "about 1.06 times the CPU time (10 M parameters on one busy core; five pairs, 0.90 to 1.16)",
    )
    scripted: ScriptedSettings = Field(default_factory=ScriptedSettings, description="How the scripted engine answers")
    http: HttpSettings = Field(default_factory=HttpSettings, description="Which servers openai_http asks, and how")

    @property
    def samples_at_once(self) -> int:
        """Most model calls that run side by side; an engine makes others wait."""
        return self.http.max_connections if self.kind == "openai_http" else self.max_num_seqs

    @model_validator(mode="before")
    @classmethod
    def _servers_have_their_model(cls, values: Any) -> Any:
        is_elsewhere = isinstance(values, dict) and values.get("kind") == "openai_http"
        return {"model_path": Path(), **values} if is_elsewhere else values

    @field_validator("renderer", mode="before")
    @classmethod
    def _fetches_nothing(cls, value: Any) -> Any:
        if value == "gpt-oss":
            raise ValueError(
                "renderer 'gpt-oss' fetches a vocabulary from the network when it is made, which an engine must not: "
                "leave it out, then the model's chat template is used"
            )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == "openai_http" and not (self.http.urls and self.http.model):
            raise ValueError("kind 'openai_http' needs http.urls, at least one, and http.model: set both")
        if self.kind != "vllm" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"tensor_parallel_size {self.tensor_parallel_size} is for kind 'vllm', but kind is {self.kind!r}: "
                "leave it out"
            )
        if self.tensor_parallel_size % self.nodes.count:
            raise ValueError(
                f"nodes.count {self.nodes.count} does not divide tensor_parallel_size {self.tensor_parallel_size}, but "
                "each machine gives equally many GPUs: change one of them"
            )
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs {self.max_num_seqs}, of "
                "which each computes at least a token in a step: raise it, or lower max_num_seqs"
            )
        return self
