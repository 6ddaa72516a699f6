"""How one sample of a collection ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from rollstream.schemas.rollout import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSample:
    """How sample `sample` of row `row` ended. `response` is null unless it completed; then `failure` says why.

    `reward` is null if nothing was scored; `scoring_failure` says why, if it should have been.
    """

    row: int
    sample: int
    attempts: int
    status: str
    response: str | None = None
    failure: str | None = None
    message: str | None = None
    finish_reason: str | None = None
    num_tokens: int = 0
    seconds: float = 0.0
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    scoring_failure: str | None = None
    scoring_message: str | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    """All that an agent's server said, as JSON values; empty for an engine in this process."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """What the model and its tools said turn by turn, as JSON values without tokens; empty if one turn says all."""

    @property
    def is_completed(self) -> bool:
        """Whether there is a response."""
        return self.status == Status.COMPLETED

    def noted(self) -> dict[str, Any]:
        """What is noted beside its number and its attempts: all that is not at its default."""
        return {name: value for name in _NOTED if (value := getattr(self, name)) not in _LEFT_OUT}

    @classmethod
    def of(cls, row: int, sample: int, attempts: int, noted: Mapping[str, Any]) -> Self:
        """From what was noted."""
        return cls(row=row, sample=sample, attempts=attempts, **noted)


_NOTED: Final = tuple(one.name for one in fields(EndedSample) if one.name not in ("row", "sample", "attempts"))
_LEFT_OUT: Final[tuple[Any, ...]] = (None, {}, [])
