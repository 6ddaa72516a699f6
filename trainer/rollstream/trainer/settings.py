"""`TrainerSettings`: the `[trainer]` table of the run's file, or ROLLSTREAM_… in the environment."""

from pathlib import Path
from typing import ClassVar, Self, get_args

from pydantic import Field, field_validator, model_validator

from rollstream.process.settings.base import StageSettings
from rollstream.process.settings.storage import Location
from rollstream.schemas.ids import checked_run
from rollstream.trainer.intake.admission import Credit, LagScope
from rollstream.training.learning.objective_settings import PolicyLossName
from rollstream.training.learning.settings import LearningSettings


class TrainerSettings(StageSettings):
    """What to train, from which rollouts, how far off policy, and what to keep of it."""

    table: ClassVar[str] = "trainer"

    model_path: Path = Field(description="Directory of the model that version 0 is made of")
    learning: LearningSettings = Field(default_factory=LearningSettings, description="Loss, optimizer and device")
    source_run: str | None = Field(
        default=None, description="Train on the rollouts of this other run; its own trainer is not affected"
    )

    num_steps: int = Field(default=0, ge=0, description="Exit 0 after this many optimizer steps; 0: never")
    lag_scope: LagScope = Field(
        default="group", description="group: drop groups that are too old; token: mask only their tokens that are"
    )
    train_without_spread: bool = Field(
        default=False,
        description="Train on groups whose advantages are all 0 too, e.g. of equal rewards: these teach nothing, but "
        "the tokens count in the loss's mean, and in its KL and entropy, if it has them",
    )
    train_truncated: bool = Field(
        default=False,
        description="Train on the tokens of samples that ended at their token limit too; else their reward counts in "
        "the baseline alone",
    )
    credit: Credit = Field(
        default="rollout",
        description="rollout: a rollout's advantage is that of all its turns; turn: each turn has its own, its score "
        "minus the mean of the group's turns of the same type and number; turns without a score do not train",
    )
    wait_for_late_seconds: float = Field(
        default=30.0,
        ge=0,
        description="A step waits for at most this long for incomplete groups that would be too old after it, so that "
        "long samples are not dropped for their length; 0: never",
    )
    lost_after_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Seconds to wait for missing samples once generators and scorers are done with a group; hardly "
        "counted while the trainer stands still, and not while no broker answers",
    )
    buffer_groups: int | None = Field(
        default=None, ge=1, description="Complete groups above which reading stops; default: 4 x groups_per_step"
    )
    incomplete_bytes: int = Field(
        default=2**30, ge=2**20, description="Bytes of samples of incomplete groups; above, the oldest group is dropped"
    )

    checkpoints: Location = Field(
        default="checkpoints",
        description="Where the checkpoints are: a directory, or file:///path, s3://bucket/prefix, gs:// or az://",
    )
    checkpoint_every: int = Field(
        default=10, ge=1, json_schema_extra={"unit": "steps"}, description="Optimizer steps between checkpoints"
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, description="Newest checkpoints that are kept; the run's older ones and cut ones are deleted"
    )
    keep_versions: int = Field(
        default=20, ge=1, description="Newest weight versions whose files are kept; older and cut ones are deleted"
    )
    accept_loss: bool = Field(
        default=False, description="Start although records expired unread; their groups close as `expired`"
    )

    @field_validator("learning")
    @classmethod
    def _rewarded(cls, learning: LearningSettings) -> LearningSettings:
        if learning.loss == "nll":
            raise ValueError(
                "loss 'nll' imitates every sample, whatever its reward, and is for `rollstream sft`: choose one of "
                f"{', '.join(get_args(PolicyLossName))}"
            )
        return learning

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.resolved_buffer_groups < self.groups_per_step:
            raise ValueError(
                f"buffer_groups {self.buffer_groups} is below groups_per_step {self.groups_per_step}: "
                "a step could never be filled; raise buffer_groups"
            )
        if self.keep_versions <= self.max_policy_lag:
            raise ValueError(
                f"keep_versions {self.keep_versions} must exceed max_policy_lag {self.max_policy_lag}: "
                "generators still load versions that far back"
            )
        if self.learning.dtype == "float64":
            raise ValueError(
                "learning.dtype 'float64' is for comparing gradients, engines load no such weights: set float32 or "
                "bfloat16"
            )
        learning = self.learning
        if self.credit == "turn" and (learning.advantages != "group_mean" or learning.scale_advantages != "none"):
            raise ValueError(
                f"credit 'turn' with advantages {learning.advantages!r} and scale_advantages "
                f"{learning.scale_advantages!r}: turns are compared by advantages 'group_mean' alone"
            )
        if self.credit == "turn" and learning.kl_reward_coefficient:
            raise ValueError(
                "credit 'turn' with kl_in 'reward', which changes rewards of rollouts: set kl_in to 'loss'"
            )
        if self.source_run is not None and checked_run(self.source_run) == self.run:
            raise ValueError(f"source_run {self.source_run!r} is this run itself: leave it out")
        return self

    @property
    def resolved_buffer_groups(self) -> int:
        """The bound in force: reading stops at this many complete groups."""
        return self.buffer_groups or 4 * self.groups_per_step

    @property
    def rollouts_run(self) -> str:
        """The run whose `prompts` and `scored` are read."""
        return self.source_run or self.run
