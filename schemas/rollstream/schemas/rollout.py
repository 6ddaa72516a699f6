"""`RolloutGenerated`: one sample of a prompt, with its tokens, behavior logprobs and weight versions, on `rollouts`.

An answer to a client's HTTP call is one too, with `served`, on `serve-rollouts`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from pydantic import Field, model_validator

from rollstream.schemas.failure import Failure
from rollstream.schemas.prompt import PromptSubmitted, ToolCall
from rollstream.schemas.record import (
    Count,
    Id,
    Logprobs,
    Map,
    Name,
    Record,
    Seconds,
    ShortSequence,
    Symbol,
    Text,
    Timestamp,
    TokenIds,
)


class Status(StrEnum):
    """How a sample or its scoring ended; the three are never mixed."""

    UNKNOWN = "UNKNOWN"
    COMPLETED = "completed"
    """The model answered. A wrong, cut off or unparseable answer is completed too: it is scored."""
    FAILED = "failed"
    """The task cannot be run, or its answer cannot be sent: prompt too long, unknown environment, record too large."""
    UNRESOLVED = "unresolved"
    """Infrastructure broke: timeout, crash of the verifier, or an engine error at every try. The record is final."""


def check_failure(status: Status, failure: Failure | None) -> None:
    """Raise `ValueError` unless there is a failure exactly when the status is not completed."""
    if (failure is None) != (status is Status.COMPLETED):
        raise ValueError(f"failure {failure!s} does not fit status {status.value!r}: all but completed have one")


class FinishReason(StrEnum):
    """Why a model call ended."""

    UNKNOWN = "UNKNOWN"
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    """Its client left before the end. It is truncated."""


class WeightSpan(Record):
    """`token_ids[start:end]` were sampled by `weight_version`. A sample has several spans if weights changed in it.

    Example:
        WeightSpan(weight_version=3, start=0, end=2)
    """

    weight_version: Count = Field(description="Version that sampled these tokens")
    start: Count = Field(description="First token, inclusive")
    end: Count = Field(description="Last token, exclusive")


class ToolAnswer(Record):
    """What a tool answered.

    Example:
        ToolAnswer(call_id="call-1", content="7")
    """

    call_id: Text = Field(description="The call that this answers")
    content: Text = Field(description="What the model was given")
    error: Text | None = Field(default=None, description="Why the tool failed, if it did")
    latency_seconds: Seconds = Field(default=0.0, description="Duration of the call")


class Turn(Record):
    """One model call.

    Shapes: `prompt_token_ids` [P] (only what follows the prefix), `token_ids` [T], `behavior_logprobs` [T] (log
    probability of each sampled token under the distribution it was sampled from), `weight_spans` cover [0, T).

    Of a server that speaks only text all four are empty: `text` is what it answered, and `reported_prompt_tokens` and
    `reported_completion_tokens` how many tokens it says that this took. Such a turn never trains.

    Example (six prompt tokens `52910=`; `01` was sampled by version 3, `259` and the stop token by version 4):
        turn = Turn(
            prompt_token_ids=[9, 6, 13, 5, 4, 14],
            token_ids=[4, 5, 6, 9, 13, 1],
            behavior_logprobs=[-0.1, -0.2, -0.3, -0.1, -0.4, -0.2],
            weight_spans=(
                WeightSpan(weight_version=3, start=0, end=2),
                WeightSpan(weight_version=4, start=2, end=6),
            ),
            finish_reason=FinishReason.STOP,
            text="01259",
            latency_seconds=0.25,
        )
    """

    prefix_turn: Count | None = Field(default=None, description="Earlier turn whose tokens this one extends")
    prefix_tokens: Count = Field(default=0, description="Tokens of that turn (prompt + sampled) that it extends")
    prompt_token_ids: TokenIds = Field(description="Prompt tokens after the prefix, little-endian int32")
    token_ids: TokenIds = Field(description="Sampled tokens, with the stop token if the model chose it, int32")
    behavior_logprobs: Logprobs = Field(description="Logprob of each sampled token, float32")
    weight_spans: ShortSequence[WeightSpan] = Field(description="Which version sampled which tokens")
    finish_reason: Symbol[FinishReason] = Field(description="Why the call ended")
    text: Text = Field(default="", description="Sampled tokens as text, for people and rubrics; never tokenized again")
    turn_type: Text = Field(default="answer", description="Kind of turn, set by the agent")
    turn_number: Count = Field(default=0, description="Which turn of its type, as the agent counts")
    cycle_step: Count = Field(default=0, description="Step within the agent's cycle")
    tool_calls: ShortSequence[ToolCall] = Field(default=(), description="Tools that the policy called")
    tool_answers: ShortSequence[ToolAnswer] = Field(default=(), description="What the tools answered")
    latency_seconds: Seconds = Field(default=0.0, description="Duration of the model call")
    reported_prompt_tokens: Count | None = Field(
        default=None, description="Tokens of the whole prompt, as a server counted them; null: it did not say"
    )
    reported_completion_tokens: Count | None = Field(
        default=None, description="Sampled tokens, as a server counted them; null: it did not say"
    )

    is_plain: bool = Field(
        default=True,
        description="Whether it was sampled from softmax(logits / temperature), temperature > 0, and nothing else; "
        "only then are the logprobs the policy's, and may the turn train",
    )
    sampling: Text = Field(
        default="", description="JSON of what shaped the sampling beside the prompt's sampling, e.g. penalties"
    )
    model: Name = Field(
        default="", description="Who answered; empty: the policy. A turn of another model has no logprobs, and no spans"
    )
    temperature: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="As used; null: the prompt's"
    )
    max_tokens: Count | None = Field(default=None, description="As used; null: the prompt's, lowered to what fits")
    trains: bool = Field(
        default=True, description="Whether the agent lets it train; only plain turns of the policy ever do"
    )
    num_cached_tokens: Count | None = Field(
        default=None, description="Prompt tokens that the engine had cached; null: it did not say"
    )
    reasoning: Text = Field(default="", description="What was thought before the answer, as text; part of the tokens")

    @model_validator(mode="after")
    def _lengths_agree(self) -> "Turn":
        if len(self.token_ids) != len(self.behavior_logprobs):
            raise ValueError(f"{len(self.token_ids)} token ids but {len(self.behavior_logprobs)} logprobs")
        # A token without a version, or with two, would have no policy lag.
        position = 0
        for span in self.weight_spans:
            if span.start != position or span.end <= span.start:
                raise ValueError(f"span {span.start}-{span.end} does not continue at token {position}")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(f"spans cover {position} of {len(self.token_ids)} tokens")
        return self

    @property
    def may_train(self) -> bool:
        """Whether it may: the policy sampled it plainly, and its agent lets it."""
        return self.trains and self.is_plain and not self.model

    @property
    def is_truncated(self) -> bool:
        """Whether it ended at the token limit or the sample's deadline (`length`), or its client left."""
        return self.finish_reason in (FinishReason.LENGTH, FinishReason.ABORT)

    @property
    def num_completion_tokens(self) -> int:
        """Number of sampled tokens: those that are here, or as many as a server reported of a turn without tokens."""
        return len(self.token_ids) or self.reported_completion_tokens or 0


REASONING: Final = "reasoning"
SUMMARIZATION: Final = "summarization"
"""The types of turns of an agent that reasons in cycles."""


class _OfType(Protocol):
    @property
    def turn_type(self) -> str: ...


_T = TypeVar("_T", bound=_OfType)


def answering(turns: Sequence[_T]) -> Sequence[_T]:
    """The turns that answer the prompt: where some reason in cycles the last of these, else all."""
    return [turn for turn in turns if turn.turn_type == REASONING][-1:] or turns


class GeneratorIdentity(Record):
    """Who generated a sample; the trainer refuses a tokenizer that is not its own.

    Example:
        generator = GeneratorIdentity(
            generator_id="generator-1",
            engine="vllm",
            engine_version="0.11.0",
            host="node-1",
            tokenizer_sha256="ab" * 32,
            chat_template_sha256="cd" * 32,
        )
    """

    generator_id: Name = Field(description="Unique per process")
    engine: Name = Field(description="Name of the engine")
    engine_version: Name = Field(description="Version of the engine's library")
    host: Name = Field(default="", description="Host name")
    tokenizer_sha256: Name = Field(default="", description="Of the tokenizer's files")
    chat_template_sha256: Name = Field(default="", description="Of the chat template's text")
    renderer: Name = Field(
        default="", description="What renders conversations instead, e.g. renderers 0.1.12 qwen3; empty: the template"
    )


class Served(Record):
    """Whose HTTP call a rollout answered.

    The choices of one call are the samples of one group.

    Example:
        served = Served(
            response_id="chatcmpl-5f0c",
            session="chat-7",
            route="/v1/chat/completions",
            key="web",
            tenant="acme",
            may_train=True,
        )
    """

    response_id: Id = Field(description="As the client saw it")
    choice: Count = Field(default=0, description="Number of the choice in that response, from 0")
    session: Name = Field(description="The conversation that the call belongs to; the response's id: to none")
    route: Name = Field(description="Path of the call, e.g. /v1/chat/completions")
    key: Name = Field(description="Name of the client's key, never the key")
    tenant: Name = Field(description="Tenant of the key; only its feedback counts")
    may_train: bool = Field(description="Whether the client consents to training on the answer")


class RolloutGenerated(Record):
    """One attempt at one sample ended.

    Example:
        rollout = RolloutGenerated(
            rollout_id=rollout_id(prompt.group_id, 2),
            attempt_id=new_attempt_id(),
            group_id=prompt.group_id,
            sample_index=2,
            group_size=prompt.group_size,
            prompt=prompt,
            turns=(turn,),
            status=Status.COMPLETED,
            generator=generator,
            started_at=utc_now(),
            finished_at=utc_now(),
        )
    """

    rollout_id: Name = Field(description="group_id and sample_index")
    attempt_id: Id = Field(description="New for each record; a prompt that is delivered again gives new ones")
    group_id: Id = Field(description="Group of the prompt")
    sample_index: Count = Field(description="From 0 to group_size - 1")
    group_size: int = Field(ge=1, description="Samples in the group")
    prompt: PromptSubmitted = Field(description="As submitted")
    turns: ShortSequence[Turn] = Field(default=(), description="Model calls in order, also those before a failure")
    status: Symbol[Status] = Field(description="completed, failed or unresolved")
    failure: Failure | None = Field(default=None, description="Why it is not completed; null if it is")
    observations: Map[Text] = Field(
        default_factory=dict, description="What the agent saw that scorers need, e.g. a session's own verdict"
    )
    generator: GeneratorIdentity = Field(description="Who generated it")
    served: Served | None = Field(default=None, description="Whose HTTP call it answered; null: nobody's")
    started_at: Timestamp = Field(description="UTC")
    finished_at: Timestamp = Field(description="UTC")

    @model_validator(mode="after")
    def _index_in_group(self) -> "RolloutGenerated":
        if self.sample_index >= self.group_size:
            raise ValueError(f"sample_index {self.sample_index} must be below group_size {self.group_size}")
        return self

    @model_validator(mode="after")
    def _failure_unless_completed(self) -> "RolloutGenerated":
        check_failure(self.status, self.failure)
        return self

    @property
    def answer(self) -> Turn | None:
        """The last turn that answers; None if there is none."""
        return answering(self.turns)[-1] if self.turns else None

    @property
    def num_completion_tokens(self) -> int:
        """Number of sampled tokens in all turns."""
        return sum(turn.num_completion_tokens for turn in self.turns)

    @property
    def is_truncated(self) -> bool:
        """Whether its last turn is."""
        return bool(self.turns) and self.turns[-1].is_truncated

    @property
    def weight_versions(self) -> tuple[int, ...]:
        """The weight versions of its spans, each once, in the order of the tokens."""
        return tuple(dict.fromkeys(span.weight_version for turn in self.turns for span in turn.weight_spans))
