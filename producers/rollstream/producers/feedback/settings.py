"""`FeedbackSettings`: the table `[producer.feedback]`, for `source = "feedback"`."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollstream.schemas.bounds import MAX_NAME_CHARACTERS, MAX_REWARD

DAY_SECONDS: Final = 86_400
_MOST_NAMES: Final = 100

ScoreName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]
"""The name of a metric of feedback, or of a component of the rubric's reward."""
Factor = Annotated[float, Field(ge=-1000, le=1000)]


class FeedbackSettings(BaseModel):
    """How feedback on an answer becomes its reward, and how long it is waited for.

    The reward is the sum of weight x value over what is there: the metrics of feedback and the components of the
    rubric. A metric's value is the mean over the clients that gave it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    weights: dict[ScoreName, Factor] = Field(
        default_factory=lambda: {"thumbs": 1.0},
        min_length=1,
        max_length=_MOST_NAMES,
        description="Metrics of feedback, by their names, and their weights in the reward; others do not count",
    )
    component_weights: dict[ScoreName, Factor] = Field(
        default_factory=dict,
        max_length=_MOST_NAMES,
        description="Components of the rubric's reward that count too, by their names, and their weights",
    )
    required: tuple[ScoreName, ...] = Field(
        default=(),
        max_length=_MOST_NAMES,
        description="Names out of both that must be there; default: any metric of feedback does",
    )
    largest: float = Field(
        default=10.0, gt=0, le=1e6, description="A rating beyond this, above or below 0, does not count: anybody's word"
    )
    settle_seconds: float = Field(
        default=60.0,
        ge=0,
        le=30 * DAY_SECONDS,
        json_schema_extra={"unit": "seconds"},
        description="How long newer feedback may replace older, from when all that is required is there",
    )
    absent: float | None = Field(
        default=None,
        ge=-MAX_REWARD,
        le=MAX_REWARD,
        description="What stands for the metrics of an answer of which nobody said anything; default: it never trains",
    )
    absent_seconds: float = Field(
        default=DAY_SECONDS,
        gt=0,
        le=30 * DAY_SECONDS,
        json_schema_extra={"unit": "seconds"},
        description="After how long that is so; only with `absent`",
    )
    window_days: float = Field(
        default=6.0,
        gt=0,
        le=365,
        json_schema_extra={"unit": "days"},
        description="How old an answer may become until it trains; its topics keep records for a day longer",
    )
    session_feedback: Literal["last", "each"] = Field(
        default="last", description="Whether feedback on a session goes to its last answer before it, or to each"
    )
    tokenizer_sha256: str = Field(
        default="",
        max_length=64,
        description="Answers of another tokenizer are left out here; default: only the trainer judges that",
    )
    store: Path = Field(
        default=Path("feedback.sqlite"),
        description="SQLite file of the answers that wait for feedback; made again from the topics when it is lost",
    )
    store_bytes: int = Field(
        default=10 * 2**30,
        ge=2**20,
        le=2**44,
        json_schema_extra={"unit": "bytes"},
        description="Most that it takes; the oldest answers, and the oldest feedback without one, are left out first",
    )

    @property
    def window_seconds(self) -> float:
        return self.window_days * DAY_SECONDS

    @model_validator(mode="after")
    def _fits_together(self) -> "FeedbackSettings":
        known = {*self.weights, *self.component_weights}
        if both := sorted(set(self.weights) & set(self.component_weights)):
            raise ValueError(f"{both[0][:50]!r} is in weights and in component_weights: give one of them another name")
        if unknown := sorted(set(self.required) - known):
            raise ValueError(f"required names {unknown[0][:50]!r}, which has no weight: give it one, 0 does")
        for name in ("settle_seconds", *(["absent_seconds"] if self.absent is not None else [])):
            if getattr(self, name) >= self.window_seconds:
                raise ValueError(
                    f"{name} {getattr(self, name):g} is not below window_days {self.window_days:g} = "
                    f"{self.window_seconds:g} s: nothing would ever train"
                )
        return self
