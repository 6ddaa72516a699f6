"""Settings of the producer of states, TOML table `[producer.states]`."""

from pydantic import BaseModel, ConfigDict, Field


class StatesSettings(BaseModel):
    """Which states of a rollout train."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    per_rollout: int = Field(
        default=2,
        ge=1,
        le=65,
        json_schema_extra={"unit": "states"},
        description="Most states of one rollout that become prompts, drawn by a hash of the seed; it has one for each "
        "cycle, and one more after its last summary",
    )
