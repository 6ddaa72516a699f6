"""`TurnProgress`: how far a sample has come, on `progress`, so that another generator can go on with it."""

from enum import StrEnum

from pydantic import Field

from rollstream.schemas.record import Count, Id, Map, Name, Record, Symbol, Text, Timestamp
from rollstream.schemas.rollout import Turn


class ProgressKind(StrEnum):
    """What is noted. Of one key the newest record counts."""

    UNKNOWN = "UNKNOWN"
    PIECE = "piece"
    """The turn's first tokens; its call goes on."""
    TURN = "turn"
    """The turn, with what its tools have answered so far."""
    CALLING = "calling"
    """The turn, whose next tool call is about to be made: it may arrive."""
    SESSION = "session"
    """A session of a tool is open."""
    ENDED = "ended"
    """The sample is complete, with as many turns as its number says; nothing of it is to be asked again."""


class TurnProgress(Record):
    """A turn of a sample came further, a session opened for it, or it ended.

    Example:
        TurnProgress(
            rollout_id=rollout_id(prompt.group_id, 2),
            attempt_id=new_attempt_id(),
            generator_id="generator-1",
            kind=ProgressKind.TURN,
            number=0,
            turn=turn,
            noted_at=utc_now(),
        )
    """

    rollout_id: Name = Field(description="Of the sample")
    attempt_id: Id = Field(description="Attempt that noted it")
    generator_id: Name = Field(description="Process that noted it")
    kind: Symbol[ProgressKind] = Field(description="piece, turn, calling, session or ended")
    number: Count = Field(default=0, description="Which turn of the sample, from 0; ended: how many there are")
    turn: Turn | None = Field(default=None, description="As far as it has come; null: of a session or an end")
    tools: Name = Field(default="", description="The set of tools whose session it is; empty: of a turn")
    session_id: Name = Field(default="", description="Id of the session; empty: of a turn")
    session_attempt: Count = Field(default=0, description="How often it was opened; a lower one is fenced")
    observations: Map[Text] = Field(default_factory=dict, description="Of a sample that ended: what its agent saw")
    noted_at: Timestamp = Field(description="UTC")

    @property
    def key(self) -> str:
        """Its key on the topic: the sample's turn, its session, or its end."""
        is_whole = self.kind in (ProgressKind.SESSION, ProgressKind.ENDED)
        return f"{self.rollout_id}/{self.kind.value if is_whole else self.number}"
