"""`ProducerSettings`: the `[producer]` table of the run's file, or ROLLSTREAM_… in the environment."""

import re
from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.settings import EngineSettings
from rollstream.environments.protocol import Split
from rollstream.process.settings.base import StageSettings
from rollstream.producers.feedback.settings import FeedbackSettings
from rollstream.producers.states.settings import StatesSettings
from rollstream.schemas.bounds import MAX_GROUP_SIZE, MAX_REWARD
from rollstream.schemas.prompt import AgentChoice, Sampling

UNSEEN: Final = "unseen"
"""The pool of tasks of which no group has closed."""
MOST_POOLS: Final = 14
MOST_OPEN_GROUPS: Final = 100_000
"""All of them are named in one `ProducerProgress`."""


class PoolSettings(BaseModel):
    """One pool of tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    up_to: float = Field(
        ge=-MAX_REWARD,
        le=MAX_REWARD,
        description="Largest mean reward of a task's latest group; the last pool has what is above it, too",
    )
    weight: float = Field(
        ge=0, le=1e6, description="How often its tasks are posed, compared with those of other pools that have tasks"
    )


_POOLS: Final = {
    "hard": PoolSettings(up_to=0.25, weight=0.2),
    "normal": PoolSettings(up_to=0.75, weight=1.0),
    "easy": PoolSettings(up_to=1.0, weight=0.2),
}


class CurriculumSettings(BaseModel):
    """Table `[producer.curriculum]`: which tasks are posed more often. It needs a source with an end."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    unseen_weight: float = Field(
        default=1.0, ge=0, le=1e6, description="The weight of tasks of which no group has closed"
    )
    pools: dict[str, PoolSettings] = Field(
        default_factory=lambda: dict(_POOLS), description="Pools by how hard tasks were, at most 14, by their names"
    )

    @field_validator("pools")
    @classmethod
    def _differ(cls, pools: dict[str, PoolSettings]) -> dict[str, PoolSettings]:
        if not 1 <= len(pools) <= MOST_POOLS:
            raise ValueError(f"{len(pools)} pools: name 1 to {MOST_POOLS}")
        for name in pools:
            if name == UNSEEN or not re.fullmatch("[a-z0-9_]{1,40}", name):
                raise ValueError(f"no pool is called {name[:50]!r}: names are [a-z0-9_]{{1,40}}, and not {UNSEEN}")
        if len({pool.up_to for pool in pools.values()}) < len(pools):
            raise ValueError("two pools have the same up_to: a mean reward could belong into both")
        return pools


class ProducerSettings(StageSettings):
    """What one producer process needs. Without `epochs` and `num_prompts` it is endless."""

    table: ClassVar[str] = "producer"

    name: str = Field(
        default="producer", min_length=1, description="Who submits; unique among the run's producers, kept for restarts"
    )
    source: Literal["environment", "jsonl", "parquet", "ingest", "feedback", "states"] = Field(
        default="environment",
        description="Where prompts come from; ingest: from clients of `rollstream ingest`, who say of each how it is "
        "sampled and scored; feedback: answers to clients, with the reward that their feedback gives; states: what the "
        "cycles of answers to clients (agent `reasoning_cache`) started from",
    )
    environment: str = Field(
        default="", description="Environment whose rubric scores the samples; with source=environment also its tasks"
    )
    split: Split = Field(default="train", description="Split of the environment")
    path: Path | None = Field(default=None, description="The file of source=jsonl or source=parquet")
    seed: int = Field(
        default=0,
        ge=0,
        description="Seed of the environment's tasks and of the order in each epoch, kept for restarts; another one is "
        "another source only if the environment gives other tasks then",
    )
    epochs: int | None = Field(default=None, ge=1, description="End after this many passes over a finite source")
    num_prompts: int | None = Field(default=None, ge=1, description="End after this many prompts")
    purpose: Literal["train", "serve"] = Field(
        default="train",
        description="Only train is trained on; serve writes serve-prompts, uses no credit and must be finite",
    )
    group_size: int = Field(
        default=8,
        ge=1,
        le=MAX_GROUP_SIZE,
        json_schema_extra={"unit": "samples"},
        description="Samples to draw for each prompt",
    )
    sampling: Sampling | None = Field(default=None, description="How to sample; default: as the environment says")
    agent: AgentChoice = Field(default_factory=AgentChoice, description="How a prompt becomes turns")
    share: int = Field(
        default_factory=lambda checked: (checked["max_policy_lag"] + 1) * checked["groups_per_step"],
        ge=1,
        le=MOST_OPEN_GROUPS,
        json_schema_extra={"unit": "groups"},
        description="Most groups of this producer that are submitted and not closed, ones_per_group times as many of "
        "one sample; default: (max_policy_lag + 1) x groups_per_step, which the shares of all producers together must "
        "not exceed: it bounds the lag",
    )
    curriculum: CurriculumSettings | None = Field(
        default=None, description="Which tasks are posed more often; default: each as often as the others"
    )
    feedback: FeedbackSettings = Field(
        default_factory=FeedbackSettings, description="How feedback becomes reward, with source=feedback"
    )
    states: StatesSettings = Field(default_factory=StatesSettings, description="Which states train, with source=states")
    most_flat_groups: int = Field(
        default=10_000,
        ge=1,
        description="End with a report when so many of this producer's groups in a row closed without spread in their "
        "rewards: nothing is learned from them",
    )
    wait_until_closed: bool = Field(
        default=True, description="A finite producer of training prompts ends when its groups are closed, not before"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.source == "environment" and not self.environment:
            raise ValueError("source=environment needs `environment`, e.g. environment = 'sort_digits'")
        if self.source == "ingest":
            self._fits_ingest()
        elif self.source in ("jsonl", "parquet") and self.path is None:
            raise ValueError(f"source={self.source} needs `path`, the file to read")
        if self.source in ("feedback", "states") and self.purpose != "train":
            raise ValueError(f"source={self.source} is there for training: leave `purpose` out")
        if self.source == "states":
            self._fits_states()
        if self.purpose == "serve" and self.epochs is None and self.num_prompts is None:
            raise ValueError("purpose=serve has no credit to slow it down: set `epochs` or `num_prompts`")
        if self.purpose == "serve" and self.curriculum is not None:
            raise ValueError("purpose=serve is never trained on, so nothing tells its curriculum how hard a task was")
        if self.purpose == "train" and self.share > self.max_open_groups:
            raise ValueError(
                f"share {self.share} exceeds (max_policy_lag {self.max_policy_lag} + 1) x groups_per_step "
                f"{self.groups_per_step} = {self.max_open_groups}, which bounds the lag: lower share, or raise "
                "max_policy_lag or groups_per_step for the whole run"
            )
        return self

    @property
    def share_groups(self) -> int:
        """The share as groups of this producer's size: steps take `ones_per_group` groups of one for one group."""
        is_of_ones = self.group_size == 1 or self.source == "feedback"
        return min(MOST_OPEN_GROUPS, self.share * (self.ones_per_group if is_of_ones else 1))

    def _fits_states(self) -> None:
        given = [name for name in ("epochs", "num_prompts", "curriculum") if getattr(self, name) is not None]
        given += ["agent"] if self.agent != AgentChoice() else []
        if given:
            raise ValueError(f"source=states poses single turns, of what clients ask, for ever: leave out {given[0]}")
        if self.group_size == 1:
            raise ValueError("source=states compares the answers to one state: set group_size to 2 or more")

    def _fits_ingest(self) -> None:
        given = [name for name in ("epochs", "num_prompts", "curriculum") if getattr(self, name) is not None]
        given += [name for name in ("purpose", "group_size") if getattr(self, name) in ("serve", 1)]
        if given:
            named = ", ".join(given)
            raise ValueError(f"source=ingest poses what clients give to train on, for ever: leave out {named}")


def idle_engine_warning(settings: ProducerSettings) -> str | None:
    """A warning if the share is too small to keep the run's engine busy; else None.

    The engine is described in the generator's table of the run's file.
    """
    engine = settings.table_of("generator").get("engine")
    num_samples = settings.share_groups * settings.group_size
    if settings.purpose != "train" or settings.source == "feedback" or not isinstance(engine, dict):
        return None
    name, table, fields = "max_num_seqs", engine, EngineSettings.model_fields
    if engine.get("kind") == "openai_http":
        name, table, fields = "max_connections", engine.get("http", {}), HttpSettings.model_fields
    wanted = table.get(name, fields[name].default)
    if num_samples >= wanted:
        return None
    return (
        f"share {settings.share_groups} x group_size {settings.group_size} = {num_samples} samples in flight at most, "
        f"the engine runs {wanted} side by side: raise groups_per_step or max_policy_lag and the share with them, or "
        f"lower {name}"
    )
