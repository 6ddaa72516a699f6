"""What `archive` and `replay` are told. Their command lines are made of it."""

from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from rollstream.process.settings.base import RUN_FILE
from rollstream.process.settings.options import ARGUMENT, FILE, LOCATION, CommandOptions
from rollstream.process.settings.storage import Location

_MAX_REWARD: Final = 1e9


class ArchiveOptions(CommandOptions):
    """Options of `archive`."""

    output: Location = Field(
        json_schema_extra=LOCATION, description="The archive: a directory, s3://…, gs://… or az://…."
    )
    follow: bool = Field(
        default=False,
        json_schema_extra={"opposite": "once"},
        description="Go on until SIGTERM or Ctrl-C. Default: one pass.",
    )
    every: float = Field(default=300.0, ge=1, le=86400, description="Seconds between looks of --follow.")
    accept_loss: bool = Field(
        default=False, description="Go on although records were deleted before they were archived."
    )


class ReplayOptions(CommandOptions):
    """Options of `replay`."""

    directory: Location = Field(json_schema_extra={**ARGUMENT, **LOCATION}, description="The archive.")
    output: Path = Field(description="File: .jsonl or .parquet.")
    environment: str = Field(default="", description="Score again with this environment's rubric, as reward_NAME.")
    sft: bool = Field(
        default=False,
        description="Write prompt and completion as messages, with the prompt's tools, for supervised training.",
    )
    min_reward: float | None = Field(
        default=None, ge=-_MAX_REWARD, le=_MAX_REWARD, description="Leave out what has less, or no reward."
    )
    processes: int = Field(default=1, ge=1, description="Processes that score.")
    config: Path | None = Field(
        default=None,
        json_schema_extra=FILE,
        description=f"A run's {RUN_FILE}: environments of your own, and [storage] for an archive in a bucket.",
    )

    @field_validator("output")
    @classmethod
    def _named_by_its_format(cls, output: Path) -> Path:
        if output.suffix not in (".jsonl", ".parquet"):
            raise ValueError("the name ends in .jsonl or .parquet")
        return output
