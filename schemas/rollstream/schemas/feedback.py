"""`FeedbackGiven`: what a client says of an answer that it got, on `feedback`."""

from typing import Final, Literal

from pydantic import Field

from rollstream.schemas.record import Count, Id, Map, Name, Record, Reward, Text, Timestamp

TargetKind = Literal["response_id", "rollout_id", "session"]
TARGET_KINDS: Final[tuple[TargetKind, ...]] = ("response_id", "rollout_id", "session")


class FeedbackGiven(Record):
    """A client rated an answer. Of one target, metric and client the newest counts, until the answer settles.

    It names its target in one of three ways: the response that the client saw, a rollout, or a session.

    Example:
        FeedbackGiven(
            feedback_id="9b1c" * 8,
            response_id="chatcmpl-5f0c",
            metric="thumbs",
            number=1.0,
            client="web",
            tenant="acme",
            given_at=utc_now(),
            submitted_at=utc_now(),
        )
    """

    feedback_id: Id = Field(description="Hash of run, key and idempotency key: what comes again has the same")
    response_id: Name | None = Field(default=None, description="The response that it is about, as the client saw it")
    rollout_id: Name | None = Field(default=None, description="The rollout that it is about")
    session: Name | None = Field(default=None, description="The session that it is about")
    choice: Count | None = Field(default=None, description="Which choice of the response; null: the first")
    metric: Name = Field(min_length=1, description="What is rated, e.g. thumbs")
    number: Reward | None = Field(default=None, description="The rating as a number")
    text: Text | None = Field(default=None, description="The rating in words, for people")
    tags: Map[str] = Field(default_factory=dict, description="Labels of the client's own")
    client: Name = Field(description="Name of the client's key, never the key")
    tenant: Name = Field(description="Tenant of the key; it counts for answers to the same tenant alone")
    given_at: Timestamp = Field(description="When the person gave it, as the client says, UTC")
    submitted_at: Timestamp = Field(description="When it was received, UTC")

    @property
    def target(self) -> tuple[TargetKind, str] | None:
        """The kind of its target and the target's id; None if it names none that is known here."""
        for kind in TARGET_KINDS:
            if (named := getattr(self, kind)) is not None:
                return kind, named
        return None
