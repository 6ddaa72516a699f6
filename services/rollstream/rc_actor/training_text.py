"""What a line of a stream holds: the texts of a group, with the fields that PipelineRL's classes of these names have.

A line that the original wrote can be read, and the original reads ours. It refuses a null reward.
"""

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from rollstream.schemas.bounds import MAX_COUNT, MAX_GROUP_SIZE, MAX_REWARD, MAX_TURNS
from rollstream.schemas.errors import UnusableRowError

NOT_TRAINED: Final = -100
"""The label of a token of the prompt."""
MAX_TEXTS: Final = MAX_GROUP_SIZE * MAX_TURNS
"""Texts of one group."""

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Number = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Score = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)]


class TrainingText(BaseModel):
    """One turn: its prompt and answer as text, and as tokens where the server gave them.

    `input_ids` and `labels` [P + T], `logprobs` [T]. Fields that are not known are passed over: the fork declares an
    `output_text` too, which follows from the text.
    """

    model_config = ConfigDict(extra="ignore")

    text: str = Field(description="The prompt, then the answer")
    n_predicted: _Number = Field(description="Characters of the answer, at the end of the text")
    reward: _Score | None = Field(default=0.0, description="0 where there was nothing to score; null: scoring failed")
    logprobs: list[_Finite] = Field(default_factory=list, description="Of the sampled tokens, as they were sampled")
    ref_logprobs: list[_Finite] = Field(default_factory=list, description="The same by a reference model")
    input_ids: list[int] = Field(default_factory=list, description="Tokens of prompt and answer; empty: not known")
    labels: list[int] = Field(default_factory=list, description=f"The same, {NOT_TRAINED} for the prompt")
    group_id: str | None = Field(default=None, description="Shared by all samples of a problem")
    finished: bool = Field(default=False, description="Whether the answer ended by itself")
    prompt_tokens: _Number = Field(default=0, description="Tokens of the prompt, 0 if nobody counted them")
    output_tokens: _Number = Field(default=0, description="Tokens of the answer, 0 if nobody counted them")
    visual_features: dict[str, Any] | None = Field(default=None, description="Always null here")
    metadata: dict[str, Any] = Field(default_factory=dict, description="What `texts.py` says of the turn")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.n_predicted > len(self.text):
            raise ValueError(f"n_predicted {self.n_predicted} is above the {len(self.text)} characters of the text")
        if len(self.labels) != len(self.input_ids):
            raise ValueError(f"{len(self.labels)} labels but {len(self.input_ids)} input_ids")
        if self.input_ids and len(self.logprobs) > len(self.input_ids):
            raise ValueError(f"{len(self.logprobs)} logprobs but {len(self.input_ids)} input_ids")
        return self

    # Not text[:-n_predicted]: without an answer that is nothing, and the answer everything.
    @property
    def prompt_text(self) -> str:
        """What was asked."""
        return self.text[: len(self.text) - self.n_predicted]

    @property
    def output_text(self) -> str:
        """What was answered."""
        return self.text[len(self.text) - self.n_predicted :]


class BaseMetrics(BaseModel):
    """What became of a rollout; a policy may add numbers of its own."""

    model_config = ConfigDict(extra="allow")

    reward: _Score
    success: bool
    no_error: bool
    no_answer: bool


class RolloutResult(BaseModel):
    """What a policy returns: the texts of one call or of a whole rollout."""

    training_texts: list[TrainingText] = Field(max_length=MAX_TEXTS)
    metrics: BaseMetrics
    latency: float = Field(ge=0, allow_inf_nan=False, description="Seconds")
    model_version: _Number | None = Field(default=None, description="Oldest weight version of its tokens")
    dataset_name: str | None = None
    group_id: str | None = None
    domain: str | None = None
    verifier_metrics: dict[str, _Finite] = Field(default_factory=dict)
    verifier_table_entry: dict[str, Any] | None = None


_GROUP: Final = TypeAdapter(Annotated[list[TrainingText], Field(min_length=1, max_length=MAX_TEXTS)])


def group_of(value: Any) -> list[TrainingText]:
    """The texts of a group, as one line of a stream has them. Raises `UnusableRowError` for any other value."""
    try:
        return _GROUP.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part)[:50] for part in first["loc"])
        found = f"{place}: {first['msg']}" if place else first["msg"]
        raise UnusableRowError("it is no group of texts", found) from None
