"""The fields of an HTTPRoute that the chart sets, after the Gateway API's `gateway.networking.k8s.io/v1`.

No package that is installed has typed models of it.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tests.chart.leader_worker_set import Metadata

_DURATION = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class ParentRef(_Model):
    """A gateway."""

    name: str = Field(min_length=1)
    namespace: str = ""
    section_name: str = ""
    port: int = 0


class BackendRef(_Model):
    """A service."""

    name: str = Field(min_length=1)
    port: int = Field(ge=1, le=65535)


class Timeouts(_Model):
    """How long a request, and its way to the service, may take."""

    request: str = Field(default="", pattern=_DURATION)
    backend_request: str = Field(default="", pattern=_DURATION)


class Rule(_Model):
    """Where requests go. Without matches: all of them."""

    backend_refs: list[BackendRef] = Field(min_length=1)
    timeouts: Timeouts | None = None


class HttpRouteSpec(_Model):
    """What is wanted."""

    parent_refs: list[ParentRef] = Field(min_length=1)
    hostnames: list[str] = Field(default_factory=list)
    rules: list[Rule] = Field(min_length=1)


class HttpRoute(_Model):
    """How requests from outside reach a service."""

    api_version: Literal["gateway.networking.k8s.io/v1"]
    kind: Literal["HTTPRoute"]
    metadata: Metadata
    spec: HttpRouteSpec
