"""The fields of a LeaderWorkerSet that the chart sets, after LWS 0.11's CRD of `leaderworkerset.x-k8s.io/v1`.

No package has typed models of it.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class RollingUpdateConfiguration(_Model):
    """How many groups may be missing, and how many may be too many, during an update."""

    max_unavailable: int | str = 1
    max_surge: int | str = 0
    partition: int = Field(default=0, ge=0)


class RolloutStrategy(_Model):
    """How groups are replaced."""

    type: Literal["RollingUpdate"]
    rolling_update_configuration: RollingUpdateConfiguration | None = None


class LeaderWorkerTemplate(_Model):
    """The pods of a group. The templates are those of Kubernetes: `kinds.py` checks them as such."""

    size: int = Field(default=1, ge=1)
    restart_policy: Literal["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"] = (
        "RecreateGroupOnPodRestart"
    )
    leader_template: dict[str, Any] | None = None
    worker_template: dict[str, Any]


class LeaderWorkerSetSpec(_Model):
    """What is wanted."""

    replicas: int = Field(default=1, ge=0)
    startup_policy: Literal["LeaderCreated", "LeaderReady"] = "LeaderCreated"
    rollout_strategy: RolloutStrategy | None = None
    leader_worker_template: LeaderWorkerTemplate


class Metadata(_Model):
    """What the chart sets of it."""

    name: str
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str] = Field(default_factory=dict)


class LeaderWorkerSet(_Model):
    """A set of groups of pods."""

    api_version: Literal["leaderworkerset.x-k8s.io/v1"]
    kind: Literal["LeaderWorkerSet"]
    metadata: Metadata
    spec: LeaderWorkerSetSpec
