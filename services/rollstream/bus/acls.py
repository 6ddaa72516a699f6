"""Reads and writes a run's ACLs on the cluster. What they should be says `bus/acl_rules.py`."""

import time
from collections.abc import Collection
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from rollstream.bus.acl_rules import AclRule, Resource
from rollstream.bus.admin import result_of
from rollstream.bus.clients import admin_client
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.errors import BrokerError, ConfigurationError

_ANSWER_SECONDS: Final = 30.0
_LOOK_EVERY_SECONDS: Final = 0.1
_KINDS: Final[dict[Resource, ResourceType]] = {
    "topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional_id": ResourceType.TRANSACTIONAL_ID,
}  # fmt: skip
_RESOURCES: Final = {kind: resource for resource, kind in _KINDS.items()}


def apply_acls(kafka: KafkaSettings, run: str, rules: Collection[AclRule]) -> None:
    """Add these permissions of a run, at least one, and wait until they are in force. Those that are there stay.

    Raises `BrokerError` and `ConfigurationError`.
    """
    with admin_client(kafka) as admin:
        _require_rights(admin)
        created = admin.create_acls([_binding(rule) for rule in rules], request_timeout=_ANSWER_SECONDS)
        for binding, future in created.items():
            result_of(future, f"adding {binding.principal} {binding.operation.name} {binding.name}")
    deadline = time.monotonic() + _ANSWER_SECONDS
    # The controller has them; each broker follows it a moment later.
    while missing := set(rules) - acls_of(kafka, run)[0]:
        if time.monotonic() > deadline:
            raise BrokerError(
                f"{len(missing)} permissions are not in force {_ANSWER_SECONDS:g} s after they were added"
            )
        time.sleep(_LOOK_EVERY_SECONDS)


def acls_of(kafka: KafkaSettings, run: str) -> tuple[set[AclRule], list[str]]:
    """The run's permissions on the cluster, and what there is besides: denials, and rules for one host alone.

    A run's resources are those whose names begin with `<run>.`, and patterns that take some of them in. Raises
    `BrokerError` and `ConfigurationError`.
    """
    with admin_client(kafka) as admin:
        _require_rights(admin)
        found = result_of(
            admin.describe_acls(every_acl(), request_timeout=_ANSWER_SECONDS), "listing the cluster's ACLs"
        )
    rules, others = set(), []
    for binding in found:
        if not _concerns(binding, run):
            continue
        rule = _rule(binding)
        if rule is None:
            others.append(_told(binding))
        else:
            rules.add(rule)
    return rules, sorted(others)


def every_acl() -> AclBindingFilter:
    """A filter that every ACL of a cluster passes."""
    return AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )


def _concerns(binding: AclBinding, run: str) -> bool:
    if binding.restype not in _RESOURCES:
        return False
    if binding.resource_pattern_type is ResourcePatternType.PREFIXED:
        return f"{run}.".startswith(str(binding.name)) or str(binding.name).startswith(f"{run}.")
    return binding.name == "*" or str(binding.name).startswith(f"{run}.")


def _rule(binding: AclBinding) -> AclRule | None:
    if binding.permission_type is not AclPermissionType.ALLOW or binding.host != "*":
        return None
    return AclRule(
        principal=binding.principal,
        resource=_RESOURCES[binding.restype],
        name=binding.name,
        operation=binding.operation.name,
        is_prefix=binding.resource_pattern_type is ResourcePatternType.PREFIXED,
    )


def _binding(rule: AclRule) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if rule.is_prefix else ResourcePatternType.LITERAL
    return AclBinding(
        _KINDS[rule.resource], rule.name, pattern, rule.principal, "*", AclOperation[rule.operation],
        AclPermissionType.ALLOW,
    )  # fmt: skip


def _told(binding: AclBinding) -> str:
    return (
        f"{binding.principal} {binding.permission_type.name} {binding.operation.name} {_RESOURCES[binding.restype]} "
        f"{binding.resource_pattern_type.name.lower()} {binding.name} from host {binding.host}"
    )


def _require_rights(admin: AdminClient) -> None:
    """Raise `ConfigurationError` if the cluster has no authorizer, or this principal may not look at its ACLs.

    The client shows neither: of both it makes an empty list (confluent-kafka 2.16).
    """
    asked = admin.describe_cluster(include_authorized_operations=True, request_timeout=_ANSWER_SECONDS)
    cluster = result_of(asked, "asking the cluster")
    if not {AclOperation.DESCRIBE, AclOperation.ALTER} <= set(cluster.authorized_operations or ()):
        raise ConfigurationError(
            "may not look at the cluster's ACLs: use a principal that may ALTER and DESCRIBE the cluster, or a super "
            "user"
        )
    broker = ConfigResource(ConfigResource.Type.BROKER, str(cluster.nodes[0].id))
    [configured] = admin.describe_configs([broker], request_timeout=_ANSWER_SECONDS).values()
    if not result_of(configured, "asking a broker for its settings")["authorizer.class.name"].value:
        raise ConfigurationError(
            "the cluster has no authorizer: everybody may do everything; set authorizer.class.name on its brokers"
        )
