"""What clients send to ingest, field by field. Pure.

A request has one entry or a list of them. Nothing is guessed: an unknown field or a text where a number belongs is
refused, and the client is told where.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rollstream.process.terminal import shown
from rollstream.schemas.errors import RefusedRequestError
from rollstream.schemas.prompt import AgentChoice, Sampling
from rollstream.schemas.record import Count, Map, Name, Reward

MOST_ENTRIES: Final = 1000
"""Of one request: it is answered as a whole."""
MOST_TEXT_CHARACTERS: Final = 2**16
MOST_TAGS: Final = 64
MOST_KEY_CHARACTERS: Final = 255
"""Of an idempotency key, in an entry or in the header."""
_EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)

NonEmptyName = Annotated[Name, Field(min_length=1)]
IdempotencyKey = Annotated[NonEmptyName, Field(max_length=MOST_KEY_CHARACTERS)]


class Entry(BaseModel):
    """One thing that a client sends. With `idempotency_key` it may be sent again, and counts once."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    idempotency_key: IdempotencyKey | None = None


class FeedbackEntry(Entry):
    """What a client says of an answer. It names the answer in one of three ways."""

    response_id: NonEmptyName | None = None
    rollout_id: NonEmptyName | None = None
    session: NonEmptyName | None = None
    choice: Count | None = None
    metric: NonEmptyName
    number: Reward | None = None
    text: Annotated[str, Field(max_length=MOST_TEXT_CHARACTERS)] | None = None
    tags: Annotated[Map[Name], Field(max_length=MOST_TAGS)] = Field(default_factory=dict)
    given_at: Annotated[AwareDatetime, Field(strict=False, ge=_EARLIEST)] | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        named = [name for name in ("response_id", "rollout_id", "session") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"it names {named or 'nothing'}: name one of response_id, rollout_id and session")
        if self.choice is not None and self.response_id is None:
            raise ValueError("`choice` is one of a response: name the answer by its response_id, or leave it out")
        if self.number is None and self.text is None:
            raise ValueError("it says nothing: give `number`, `text`, or both")
        return self


class PromptEntry(Entry):
    """A prompt. `messages`: a text of the user, or chat messages. Without `environment`, that of the client's key."""

    messages: Any
    purpose: Literal["serve", "train"] = "serve"
    environment: NonEmptyName | None = None
    reference_answer: str | None = None
    tools: list[Any] = Field(default_factory=list)
    sampling: Sampling = Field(default_factory=Sampling)
    group_size: Annotated[int, Field(ge=1)] | None = None
    agent: AgentChoice = Field(default_factory=AgentChoice)
    metadata: Map[str] = Field(default_factory=dict)


E = TypeVar("E", bound=Entry)


def entries_in(body: Any, kind: type[E]) -> list[E]:
    """The entries of a request's body, one or many. Raises `RefusedRequestError`."""
    found = body if isinstance(body, list) else [body]
    if not found or body is None:
        raise invalid("the body is empty: send an object, or a list of objects")
    if len(found) > MOST_ENTRIES:
        raise RefusedRequestError(
            413, "too_many", f"the request has {len(found)} entries, at most {MOST_ENTRIES}: send several requests"
        )
    return [_entry(number, one, kind) for number, one in enumerate(found)]


def invalid(why: str) -> RefusedRequestError:
    """An entry, or the whole request, can't be understood."""
    return RefusedRequestError(422, "invalid", why)


def explained(error: ValidationError) -> str:
    """The first thing that is wrong: where it is, what is allowed, and a plain value that was found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    found = first.get("input")
    got = f", got {shown(found)}" if isinstance(found, str | int | float | None) else ""
    why = first["msg"].removeprefix("Value error, ")
    return f"{place}: {why}{got}" if place else why


def _entry(number: int, found: Any, kind: type[E]) -> E:
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise invalid(f"entry {number}: {explained(error)}") from error
