"""`PromptSubmitted`: what the model is asked. Producers and clients publish it."""

import hashlib
from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from rollstream.schemas.bounds import (
    MAX_GROUP_BYTES,
    MAX_GROUP_SIZE,
    MAX_ITEMS,
    MAX_SAMPLE_TOKENS,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
)
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.record import Count, Id, Map, Name, Record, ShortSequence, Symbol, Text, Timestamp

# No record has 8 MiB, so groups up to this size are within their bound, and their prompt need not be measured.
_ALWAYS_FITTING_SIZE: Final = MAX_GROUP_BYTES // 2**23


class Purpose(StrEnum):
    """What a prompt is for. Only prompts with `train` are trained on."""

    UNKNOWN = "UNKNOWN"
    TRAIN = "train"
    SERVE = "serve"
    EVALUATE = "evaluate"


class ToolCall(Record):
    """One call of a tool that the policy asked for.

    Example:
        call = ToolCall(call_id="call-1", name="calculator", arguments='{"expression": "5 + 2"}')
    """

    call_id: Text = Field(description="Id that the answer refers to")
    name: Text = Field(description="Name of the tool")
    arguments: Text = Field(description="Arguments as the policy wrote them, JSON text")


class Message(Record):
    """One chat message.

    Example:
        Message(role="user", content="52910=")
    """

    role: str = Field(description="system, user, assistant or tool")
    content: str = Field(description="Text of the message")
    tool_calls: ShortSequence[ToolCall] = Field(default=(), description="Tool calls of an assistant message")
    tool_call_id: str | None = Field(default=None, description="The call that a tool message answers")
    name: str | None = Field(default=None, description="Name of the speaker or tool, for templates that show it")
    reasoning: str | None = Field(default=None, description="What an assistant message thought before its content")

    @property
    def left_out_of_hashes(self) -> set[str]:
        """Fields that were added later, where they are not set: what was hashed before them stays the same."""
        return {field for field in ("name", "reasoning") if getattr(self, field) is None}

    def hashed_json(self) -> str:
        """The message as JSON, for a hash."""
        return self.model_dump_json(exclude=self.left_out_of_hashes)


def more_than_a_record_holds(**parts: Collection[Any]) -> str | None:
    """Which part of a prompt has too many entries for a record, e.g. `metadata=`; None if none has."""
    for name, entries in parts.items():
        if len(entries) > MAX_ITEMS:
            return f"it has {len(entries)} {name}, more than {MAX_ITEMS}"
    return None


class Sampling(Record):
    """How to sample; training prompts need temperature > 0, top_p 1 and no top_k.

    Example:
        Sampling(temperature=1.0, max_tokens=12, seed=17)
    """

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="Divides the logits; 0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus bound, 1 is off")
    top_k: int = Field(default=0, ge=0, description="Keep the k most likely tokens, 0 is off")
    max_tokens: int = Field(default=256, ge=1, description="Most tokens of one model call, lowered to what fits")
    stop: ShortSequence[str] = Field(default=(), description="Texts that end a generation")
    seed: int | None = Field(default=None, description="Seed of the prompt; each sample derives its own from it")

    @property
    def is_plain(self) -> bool:
        """Whether it samples from softmax(logits / temperature) and nothing else: the policy's own distribution."""
        return MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE and self.top_p == 1 and self.top_k == 0


class AgentChoice(Record):
    """Which agent turns the prompt into turns.

    Example:
        AgentChoice(name="debate", options={"rounds": "2"})
    """

    name: Name = Field(
        default="single_turn", description="Name of the agent: built in, or declared in the run's settings"
    )
    options: Map[str] = Field(default_factory=dict, description="Options of the agent")


class PromptSource(Record):
    """Where a prompt came from.

    Example:
        PromptSource(dataset="sort_digits", row=17, epoch=0)
    """

    dataset: Name = Field(default="", description="Name of the data set or environment")
    row: Count = Field(default=0, description="Row in the data set")
    epoch: Count = Field(default=0, description="Pass over the data set, from 0")


class PromptSubmitted(Record):
    """A task was submitted.

    Example:
        prompt = PromptSubmitted(
            prompt_id="sort_digits/17",
            group_id=group_id("demo", "sort_digits/17", 0),
            purpose=Purpose.TRAIN,
            environment="sort_digits",
            messages=(Message(role="user", content="52910="),),
            reference_answer="01259",
            sampling=Sampling(temperature=1.0, max_tokens=12, seed=17),
            group_size=4,
            source=PromptSource(dataset="sort_digits", row=17, epoch=0),
            producer="producer-0",
            sequence=17,
            submitted_at=utc_now(),
        )
    """

    prompt_id: Name = Field(min_length=1, description="Id of the task, with its source")
    group_id: Id = Field(description="Computed from run, prompt_id and epoch; shared by the samples")
    purpose: Symbol[Purpose] = Field(default=Purpose.SERVE, description="train, serve or evaluate; only train trains")
    weight_version: Count | None = Field(default=None, description="Version to evaluate; evaluation only")
    environment: Name = Field(default="", description="Environment whose rubric scores the samples; empty: none")
    messages: ShortSequence[Message] = Field(description="The conversation so far")
    tools: ShortSequence[str] = Field(default=(), description="Tool definitions, each a JSON function schema")
    reference_answer: str | None = Field(default=None, description="What a verifier compares with")
    sampling: Sampling = Field(default_factory=Sampling, description="How to sample")
    group_size: int = Field(default=1, ge=1, description="Samples to draw for this prompt")
    agent: AgentChoice = Field(default_factory=AgentChoice, description="How the prompt becomes turns")
    metadata: Map[str] = Field(default_factory=dict, description="Copied unchanged into every later record")
    source: PromptSource = Field(default_factory=PromptSource, description="Where the prompt came from")
    producer: Name = Field(default="", description="Who submitted it; empty for outside clients")
    sequence: Count = Field(default=0, description="Number of the prompt in its producer's order, from 0")
    subject: Name = Field(default="", description="HMAC of the id of the person who asks; empty: not known")
    submitted_at: Timestamp = Field(description="When it was submitted, UTC")

    def content_hash(self) -> str:
        """Hash of what is asked, without who asked and when. All samples of a group must have the same."""
        exclude: dict[str, Any] = dict.fromkeys(("submitted_at", "producer", "sequence", "metadata", "subject"), True)
        # Generators of an older version may answer samples of the same group.
        exclude["messages"] = {number: message.left_out_of_hashes for number, message in enumerate(self.messages)}
        asked = self.model_dump_json(exclude=exclude)
        return hashlib.sha256(asked.encode()).hexdigest()


def out_of_bounds(prompt: PromptSubmitted) -> Failure | None:
    """Why no sample of a readable prompt may run: a number of it is out of its bounds; None if all are within.

    Generators answer such a prompt with failed samples, and the trainer closes its group.
    """
    sampling = prompt.sampling
    bounds = group_out_of_bounds(prompt)
    if bounds is None and sampling.max_tokens > MAX_SAMPLE_TOKENS:
        bounds = f"max_tokens {sampling.max_tokens} is above {MAX_SAMPLE_TOKENS}: lower it"
    if bounds is not None:
        return Failure(code=FailureCode.BAD_PROMPT, message=bounds)
    if sampling.temperature and not MIN_TEMPERATURE <= sampling.temperature <= MAX_TEMPERATURE:
        return Failure(
            code=FailureCode.UNSUPPORTED_SAMPLING,
            message=f"temperature {sampling.temperature} is neither 0 nor in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE:g}]",
        )
    return None


def group_out_of_bounds(prompt: PromptSubmitted) -> str | None:
    """Why a prompt asks for too many samples; None if it does not. Such a prompt is answered by one sample alone."""
    size = prompt.group_size
    if size > MAX_GROUP_SIZE:
        return f"group_size {size} is above {MAX_GROUP_SIZE}: submit several prompts"
    if size <= _ALWAYS_FITTING_SIZE:
        return None
    num_bytes = len(prompt.model_dump_json().encode())
    if size * num_bytes <= MAX_GROUP_BYTES:
        return None
    return (
        f"group_size {size} x {num_bytes} bytes of the prompt, which each sample carries, is above {MAX_GROUP_BYTES} "
        f"bytes: lower group_size to {max(MAX_GROUP_BYTES // num_bytes, _ALWAYS_FITTING_SIZE)}, or shorten the prompt"
    )


def refuse_out_of_bounds(prompt: PromptSubmitted) -> None:
    """Raise `ConfigurationError` for a prompt whose samples would all fail; for those who are about to submit it."""
    refused = out_of_bounds(prompt)
    if refused is not None:
        raise ConfigurationError(f"prompt {prompt.prompt_id} can't be submitted: {refused.message}")
