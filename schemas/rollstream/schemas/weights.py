"""`WeightsPublished` and `WeightsApplied`: a weight version exists; a generator has loaded it, or says why not."""

from enum import StrEnum

from pydantic import Field

from rollstream.schemas.record import Count, Name, Record, Seconds, Sequence, Symbol, Text, Timestamp


class WeightsKind(StrEnum):
    """What the files of a version hold."""

    UNKNOWN = "UNKNOWN"
    FULL = "full"
    DELTA = "delta"
    LORA = "lora"


class ApplyOutcome(StrEnum):
    """How loading a version ended."""

    UNKNOWN = "UNKNOWN"
    APPLIED = "applied"
    FAILED = "failed"
    SKIPPED = "skipped"
    """A newer version was there before this one was loaded."""


class WeightFile(Record):
    """One file of a version.

    Example:
        file = WeightFile(name="model.safetensors", num_bytes=4_246_784, sha256="23" * 32)
    """

    name: Name = Field(description="Path below the version's uri")
    num_bytes: Count = Field(description="Size in bytes")
    sha256: Name = Field(description="Hex digest of the content")


class WeightsPublished(Record):
    """A weight version was published. Versions only grow; `parent_version` makes them a tree.

    Example:
        WeightsPublished(
            model="policy",
            weight_version=4,
            parent_version=3,
            uri="file:///srv/weights/4-9f3c",
            files=(file,),
            step=4,
            created_at=utc_now(),
        )
    """

    model: Name = Field(description="Name of the model, the record's key")
    weight_version: Count = Field(description="Number of this version")
    parent_version: Count | None = Field(default=None, description="Version that it was trained or restored from")
    kind: Symbol[WeightsKind] = Field(default=WeightsKind.FULL, description="What the files hold")
    uri: str = Field(description="Directory of the files")
    files: Sequence[WeightFile] = Field(description="Every file with size and checksum")
    dtype: Name = Field(default="float32", description="Element type of the tensors")
    step: Count = Field(description="Optimizer steps that led to this version")
    created_at: Timestamp = Field(description="UTC")


class WeightsApplied(Record):
    """A generator loaded a version, failed to, or skipped it.

    Example:
        WeightsApplied(
            generator_id="generator-1",
            weight_version=4,
            outcome=ApplyOutcome.APPLIED,
            stall_seconds=0.027,
            load_seconds=0.08,
            applied_at=utc_now(),
        )
    """

    generator_id: Name = Field(description="Id of the generator, the record's key")
    weight_version: Count = Field(description="Version that it loaded, failed to load or skipped")
    outcome: Symbol[ApplyOutcome] = Field(description="applied, failed or skipped")
    stall_seconds: Seconds = Field(default=0.0, description="How long no tokens were generated")
    load_seconds: Seconds = Field(default=0.0, description="How long reading, checking and loading took")
    error: Text | None = Field(default=None, description="Why it failed")
    applied_at: Timestamp = Field(description="UTC")
