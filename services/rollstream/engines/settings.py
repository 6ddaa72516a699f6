"""Settings of an engine, TOML table `[generator.engine]`."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


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


class EngineSettings(BaseModel):
    """Which engine, and how it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["vllm", "transformers", "scripted"] = Field(default="vllm", description="Which engine")
    model_path: Path = Field(description="Directory of the first weights, config and tokenizer (scripted: tokenizer)")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Element type of the weights; auto is what the model's config says"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes a GPU where there is one")
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
    kv_cache_bytes: int | None = Field(
        default=None, ge=2**20, description="Size of vLLM's KV cache, bytes; default: 256 MiB on a CPU, vLLM's on a GPU"
    )
    enforce_eager: bool = Field(
        default=False, description="Do not compile vLLM's model: starts 10 to 30 s sooner, generates up to 1.7x slower"
    )
    vllm_metrics: bool = Field(
        default=False,
        description="Export vLLM's own metrics too, vllm:…, such as the time to the first token; they cost vLLM time "
        "for every token",
    )
    scripted: ScriptedSettings = Field(default_factory=ScriptedSettings, description="How the scripted engine answers")
