"""Settings of the scorer, TOML table `[scorer]`."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from rollstream.environments.pool.pool import PoolBounds
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.bounds import MAX_ITEMS
from rollstream.schemas.record import Reward


class ScorerSettings(StageSettings):
    """What one scorer process needs."""

    table: ClassVar[str] = "scorer"

    scorer_id: str = Field(default="", description="Unique per process; empty: host name and process id")
    num_processes: int = Field(default=1, ge=1, le=64, description="Child processes that run reward functions")
    batch_size: int = Field(
        default=128,
        ge=1,
        le=4096,
        json_schema_extra={"unit": "rollouts"},
        description="Most rollouts scored at once, of up to 7 MiB each",
    )
    sample_deadline_seconds: float = Field(
        default=5.0,
        gt=0,
        description="A sample whose scoring takes longer ends as unresolved, seconds; see reward_at_timeout",
    )
    reward_at_timeout: dict[str, Reward] = Field(
        default_factory=dict,
        max_length=MAX_ITEMS,
        description="Environment → reward of a sample whose scoring takes longer; of the others such a sample is "
        "unresolved and missing from the baseline",
    )
    load_deadline_seconds: float = Field(
        default=10.0,
        gt=0,
        description="An environment whose import takes longer leaves its samples unresolved, seconds; math and "
        "by_source take 6 to 18 where the files of antlr and sympy are not in memory yet",
    )
    batch_deadline_seconds: float = Field(
        default=15.0,
        gt=0,
        description="What a batch has scored by then is published, and the rest goes on; it ends as unresolved only if "
        "Kafka or the end of the process waits for it, seconds",
    )
    session_timeout_seconds: float = Field(
        default=20.0, ge=1, le=90, description="A scorer that Kafka has not heard of for so long counts as dead"
    )

    @model_validator(mode="after")
    def _deadlines_nest(self) -> Self:
        longest = max(self.sample_deadline_seconds, self.load_deadline_seconds)
        if longest > self.batch_deadline_seconds:
            raise ValueError(
                f"sample_deadline_seconds and load_deadline_seconds ({longest:g}) must fit into "
                f"batch_deadline_seconds ({self.batch_deadline_seconds:g})"
            )
        if self.batch_deadline_seconds >= self.session_timeout_seconds:
            # A rebalance waits for the running batch. Kafka removes a member that makes it wait longer than a session.
            raise ValueError(
                f"batch_deadline_seconds ({self.batch_deadline_seconds:g}) must be below "
                f"session_timeout_seconds ({self.session_timeout_seconds:g})"
            )
        return self

    def pool_bounds(self) -> PoolBounds:
        return PoolBounds(
            num_processes=self.num_processes,
            sample_seconds=self.sample_deadline_seconds,
            load_seconds=self.load_deadline_seconds,
            batch_seconds=self.batch_deadline_seconds,
            rewards_at_timeout=self.reward_at_timeout,
        )
