"""The settings of a local Kafka cluster: its nodes, and the server.properties of each node."""

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rollstream.local.ports import HOST, free_ports

PROPERTIES_FILE = "server.properties"
# The largest bound of our topics, that of dead-letters.
MAX_MESSAGE_BYTES = 8 * 2**20

FIXED = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "log.segment.bytes": str(16 * 2**20),
    # On one machine a dead process can be noticed within seconds. Kafka's 45 s are made for networks. For brokers the
    # time is shorter still: until it is over, a restart of the broker is refused as a duplicate registration.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Readers with read_committed see nothing after an open transaction. That of a dead producer is aborted when it
    # has timed out, and this is how often Kafka looks for such.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # Few cores and little memory.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
    "log.cleaner.dedupe.buffer.size": str(16 * 2**20),
}


class NodePlan(BaseModel):
    """One broker, which is also a controller: its number (from 1), its ports and its directory id."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    node_id: int
    port: int
    controller_port: int
    directory_id: str

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def controller_address(self) -> str:
        return f"{HOST}:{self.controller_port}"


class ClusterPlan(BaseModel):
    """What never changes in a cluster: its id and its nodes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    cluster_id: str
    nodes: tuple[NodePlan, ...]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def initial_controllers(self) -> str:
        return ",".join(f"{n.node_id}@{n.controller_address}:{n.directory_id}" for n in self.nodes)


def plan_cluster(brokers: Literal[1, 3]) -> ClusterPlan:
    """The plan of a new cluster, on ports that are free now."""
    ports = free_ports(2 * brokers)
    nodes = tuple(
        NodePlan(node_id=i + 1, port=ports[2 * i], controller_port=ports[2 * i + 1], directory_id=kafka_id())
        for i in range(brokers)
    )
    return ClusterPlan(cluster_id=kafka_id(), nodes=nodes)


def kafka_id() -> str:
    """A random id in Kafka's form: 22 URL-safe characters. The first is no dash, which would look like an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def server_properties(
    plan: ClusterPlan, node: NodePlan, log_dir: Path, others: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The text of one node's server.properties; `others` are added, or replace those that are set here.

    With three nodes, each has a copy of every topic, and two must confirm a write.
    """
    replicas, confirming = (3, 2) if len(plan.nodes) == 3 else (1, 1)
    listener = {**FIXED, **others}["inter.broker.listener.name"]
    listeners = f"{listener}://{node.address},CONTROLLER://{node.controller_address}"
    values = FIXED | {
        "node.id": str(node.node_id),
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.bootstrap.servers": ",".join(n.controller_address for n in plan.nodes),
        "log.dirs": str(log_dir),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(confirming),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(confirming),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(confirming),
        **others,
    }
    return "".join(f"{key}={value}\n" for key, value in sorted(values.items()))


def log_dir_of(home: Path) -> Path | None:
    """Where the node in `home` had its data at its last start, by its server.properties; None before its first."""
    try:
        lines = (home / PROPERTIES_FILE).read_text().splitlines()
    except FileNotFoundError:
        return None
    return next((Path(value) for key, _, value in (line.partition("=") for line in lines) if key == "log.dirs"), None)
