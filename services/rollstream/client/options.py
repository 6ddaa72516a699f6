"""What `evaluate` is told. Its command line is made of it."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from rollstream.process.settings.options import FILE, CommandOptions
from rollstream.schemas.bounds import MAX_REWARD, MAX_TEMPERATURE, MIN_TEMPERATURE

_FOR_FOLLOWERS = ("output", "health_port", "wandb")


class EvaluateOptions(CommandOptions):
    """Options of `evaluate`."""

    version: int | None = Field(default=None, ge=0, description="Weight version; default: the newest.")
    environment: str | None = Field(
        default=None, description="Environment whose prompts are asked; default: the producer's."
    )
    num_prompts: int = Field(default=512, ge=1, description="Held-out prompts.")
    # pass@k of each k is worked out for each number of passes.
    samples: int = Field(default=1, ge=1, le=256, description="Samples of each prompt: gives pass@1 to pass@SAMPLES.")
    temperature: float | None = Field(
        default=None,
        ge=MIN_TEMPERATURE,
        le=MAX_TEMPERATURE,
        description="Of sampling; default: greedy for one sample, the environment's own for several.",
    )
    pass_threshold: float = Field(
        default=0.5, ge=-MAX_REWARD, le=MAX_REWARD, description="Smallest reward that passes."
    )
    deadline: float = Field(default=600.0, ge=1, description="Seconds to wait for the last answer.")
    follow: bool = Field(
        default=False,
        json_schema_extra={"opposite": "once"},
        description="Evaluate versions as they are published, until SIGTERM or Ctrl-C.",
    )
    every: int = Field(default=1, ge=1, description="With --follow: only when versions pass another multiple of this.")
    output: Path | None = Field(
        default=None,
        json_schema_extra=FILE,
        description="With --follow: the .jsonl file that gets a line for each version, and from which a restart goes "
        "on.",
    )
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="With --follow: serve /metrics, /livez and /readyz on this port; 0: a free one.",
    )
    wandb: str | None = Field(
        default=None, min_length=1, description="With --follow: the project of Weights & Biases to log to as well."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.follow and self.output is None:
            raise ValueError("--follow needs --output, the .jsonl file that its results are added to")
        if self.follow and self.version is not None:
            raise ValueError("--follow evaluates what is published, so --version does not go with it")
        given = [name for name in _FOR_FOLLOWERS if getattr(self, name) is not None]
        if given and not self.follow:
            raise ValueError(f"--{given[0].replace('_', '-')} goes with --follow: one evaluation is printed, or --json")
        return self
