"""What `rc-streams` is told. Its command line is made of it."""

from pathlib import Path

from pydantic import Field

from rollstream.process.settings.base import RUN_FILE
from rollstream.process.settings.options import ARGUMENT, FILE, LOCATION, CommandOptions
from rollstream.process.settings.storage import Location
from rollstream.schemas.bounds import MAX_GROUP_SIZE


class StreamExportOptions(CommandOptions):
    """Options of `rc-streams`."""

    directory: Location = Field(json_schema_extra={**ARGUMENT, **LOCATION}, description="The archive.")
    output_dir: Path = Field(description="Groups go to OUTPUT_DIR/streams/rc_actor/0/0/0.jsonl, which is replaced.")
    attempts: int = Field(
        default=1, ge=1, le=MAX_GROUP_SIZE, description="Samples that share a sample_id, as `attempts` of rc-actor."
    )
    resume_state: bool = Field(default=False, description="Add the state after the last summary, marked, as a text.")
    config: Path | None = Field(
        default=None, json_schema_extra=FILE, description=f"A run's {RUN_FILE}: [storage] for an archive in a bucket."
    )
