"""The JSON files of an archive: what it is of, what each segment holds, and what its writer goes on from."""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rollstream.archive.branch import BranchState
from rollstream.archive.tables import FILE

TopicName = Literal["ledger", "prompts", "scored"]

FORMAT: Final = 1


class Identity(BaseModel):
    """What an archive is of. Offsets of another cluster's topics mean nothing here."""

    # Another format may have other fields: then its number is what is said about it.
    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    run: str
    cluster_id: str
    topic_ids: dict[str, str]


class _Files(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[str, ...] = ()

    @field_validator("files")
    @classmethod
    def _own_names(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        for name in files:
            if not FILE.fullmatch(name):
                raise ValueError(f"{name[:200]!r} is no file of an archive")
        return files


class Segment(_Files):
    """Records of one topic that follow each other in each partition."""

    number: int = Field(ge=0)
    generation: int = Field(default=1, ge=1)
    topic: TopicName
    next_offsets: dict[int, int] = Field(description="Partition -> the offset to read on from")
    num_rows: int = 0
    num_unreadable: int = 0
    num_bytes: int | None = Field(default=None, description="Of its encoded records; null: it takes no more of them")
    num_open: int = Field(default=0, description="Rows whose group was open")
    known_until: int = Field(default=0, description="Next offset of `ledger` when this generation was written")
    newest_entry: int = Field(default=-1, description="Largest offset of `ledger` that its rows depend on")


class Note(_Files):
    """What the writer is about to write and to remove: the files of two generations of a segment."""

    number: int = Field(ge=0)


class Head(BaseModel):
    """What a writer goes on from, so that its start does not read what was finished long ago.

    All of it follows from the segments. Those that are not `live` are full, no group of theirs is waited for, and the
    newest entries of the ledger, which `branch` knows one by one, say nothing about their rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    next_number: int = Field(ge=0)
    live: tuple[int, ...]
    num_rows: dict[TopicName, int] = Field(description="Of the segments that are not live")
    num_unreadable: int = Field(description="Of the segments that are not live")
    branch: BranchState
