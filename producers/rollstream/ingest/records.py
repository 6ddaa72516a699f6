"""Makes records of what clients send: with ids that a request that comes again has too. Pure."""

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from rollstream.agents.load import refuse_unknown_agent
from rollstream.agents.posable import refuse_unposable
from rollstream.environments.load import refuse_unknown_environment
from rollstream.http.keys import ClientKey
from rollstream.ingest.entries import FeedbackEntry, PromptEntry, explained, invalid
from rollstream.process.settings.base import StageSettings
from rollstream.rows.conversation import chat_of, records_of, tools_of
from rollstream.schemas.errors import BadMessageError, ConfigurationError, RefusedRequestError
from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling, refuse_out_of_bounds

_TRAINED_SAMPLES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sends: the name of the client's key, what the key allows, and when the request was received."""

    client: str
    key: ClientKey
    received_at: datetime


def entry_id(run: str, client: str, idempotency_key: str | None, number: int) -> str:
    """64 hex digits: the same for what comes again with its key; without a key, others each time.

    `number` is that of the entry within its request; 0 for an entry with a key of its own.
    """
    # None of them can hold a NUL byte, so different inputs never give the same text.
    told = uuid.uuid4().hex if idempotency_key is None else f"{run}\0{client}\0{idempotency_key}\0{number}"
    return hashlib.sha256(told.encode()).hexdigest()


def feedback_of(entry: FeedbackEntry, named: str, sender: Sender) -> FeedbackGiven:
    """The record of feedback. A client's clock is not believed beyond ours."""
    said = entry.model_dump(exclude={"idempotency_key", "given_at"})
    given_at = sender.received_at if entry.given_at is None else min(entry.given_at, sender.received_at)
    return FeedbackGiven(
        **said,
        feedback_id=named,
        client=sender.client,
        tenant=sender.key.tenant,
        given_at=given_at,
        submitted_at=sender.received_at,
    )


def prompt_of(entry: PromptEntry, named: str, sender: Sender, settings: StageSettings) -> PromptSubmitted:
    """The record of a prompt. Raises `RefusedRequestError` if it may not be posed, or nobody could answer it."""
    is_train = entry.purpose == "train"
    if is_train and not sender.key.may_train:
        raise RefusedRequestError(
            403, "not_allowed", f"client {sender.client} may not train: set may_train for its key, or purpose serve"
        )
    prompt_id = f"ingest/{sender.client}/{named}"
    try:
        prompt = PromptSubmitted(
            prompt_id=prompt_id,
            group_id=group_id(settings.run, prompt_id, 0),
            purpose=Purpose(entry.purpose),
            environment=sender.key.environment if entry.environment is None else entry.environment,
            messages=records_of(chat_of(entry.messages, role="user")),
            tools=tools_of(entry.tools),
            reference_answer=entry.reference_answer,
            sampling=_plain(entry.sampling) if sender.key.sampling == "plain" else entry.sampling,
            group_size=entry.group_size or (_TRAINED_SAMPLES if is_train else 1),
            agent=entry.agent,
            metadata=entry.metadata,
            submitted_at=sender.received_at,
        )
        (refuse_unposable if is_train else _refuse_unanswerable)(prompt, settings)
    except ValidationError as error:
        raise invalid(explained(error)) from error
    except (BadMessageError, ConfigurationError) as error:
        raise invalid(str(error)) from error
    return prompt


def _refuse_unanswerable(prompt: PromptSubmitted, settings: StageSettings) -> None:
    refuse_out_of_bounds(prompt)
    refuse_unknown_agent(prompt.agent.name, settings.agents)
    if prompt.environment:
        refuse_unknown_environment(prompt.environment, settings.environments)


def _plain(sampling: Sampling) -> Sampling:
    return Sampling(max_tokens=sampling.max_tokens, stop=sampling.stop, seed=sampling.seed)
