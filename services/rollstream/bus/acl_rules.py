"""What each stage's principal may do on a cluster with an authorizer: its stage's work, and nothing else.

Names are literal. A prefix such as `<run>.` would let a generator write the ledger. Only an operator, who may make and
delete topics, has the prefix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rollstream.schemas.ids import checked_run
from rollstream.schemas.topics import (
    DEAD_LETTERS,
    EVAL_PROGRESS,
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    EVAL_SCORED,
    FEEDBACK,
    INGEST_PROMPTS,
    LEDGER,
    PRODUCERS,
    PROGRESS,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    SERVE_SCORED,
    STREAM_TOPICS,
    TOPICS,
    WEIGHTS,
    WEIGHTS_APPLIED,
    Topic,
)

Resource = Literal["topic", "group", "transactional_id"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclRule:
    """One permission. `is_prefix`: for all resources whose names begin with `name`."""

    principal: str
    resource: Resource
    name: str
    operation: str
    is_prefix: bool = False

    def __str__(self) -> str:
        kind = "prefix" if self.is_prefix else "literal"
        return f"{self.principal} {self.operation} {self.resource} {kind} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleWork:
    """What a role does. Groups and ids are named within the run. `watches`: groups whose offsets it looks at."""

    writes: tuple[Topic[Any], ...] = ()
    reads: tuple[Topic[Any], ...] = ()
    asks_ends_of: tuple[Topic[Any], ...] = ()
    asks_retention_of: tuple[Topic[Any], ...] = ()
    joins: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()


_WORK: Final[dict[str, _RoleWork]] = {
    # Who writes `prompts`, `ingest-prompts`, `feedback` or `scored` influences training.
    "producer": _RoleWork(
        writes=(PROMPTS, PRODUCERS, SERVE_PROMPTS, DEAD_LETTERS),
        reads=(PROMPTS, SERVE_PROMPTS, PRODUCERS, LEDGER, INGEST_PROMPTS),
    ),
    "feedback": _RoleWork(
        writes=(SCORED, PRODUCERS, DEAD_LETTERS),
        reads=(FEEDBACK, SERVE_SCORED, PRODUCERS, LEDGER),
        asks_ends_of=(PROMPTS, SERVE_PROMPTS),
        asks_retention_of=(PROMPTS, SCORED, SERVE_SCORED, FEEDBACK),
    ),
    "states": _RoleWork(
        writes=(PROMPTS, PRODUCERS),
        reads=(PROMPTS, SERVE_SCORED, PRODUCERS, LEDGER),
        asks_ends_of=(SERVE_PROMPTS,),
    ),
    "ingest": _RoleWork(writes=(INGEST_PROMPTS, SERVE_PROMPTS, FEEDBACK)),
    "generator": _RoleWork(
        writes=(ROLLOUTS, EVAL_ROLLOUTS, SERVE_ROLLOUTS, PROGRESS, EVAL_PROGRESS, WEIGHTS_APPLIED, DEAD_LETTERS),
        reads=(PROMPTS, EVAL_PROMPTS, SERVE_PROMPTS, PROGRESS, EVAL_PROGRESS, WEIGHTS),
        joins=("generators",),
    ),
    "scorer": _RoleWork(
        writes=(SCORED, EVAL_SCORED, SERVE_SCORED, DEAD_LETTERS),
        reads=(ROLLOUTS, EVAL_ROLLOUTS, SERVE_ROLLOUTS),
        joins=("scorers",),
    ),
    "trainer": _RoleWork(
        writes=(WEIGHTS, LEDGER, DEAD_LETTERS),
        reads=(PROMPTS, SCORED, WEIGHTS, LEDGER, PRODUCERS),
        asks_ends_of=(ROLLOUTS,),
        asks_retention_of=(PROMPTS, SCORED),
        joins=("trainer", "trainer-presence"),
        watches=("generators", "scorers"),
        transactional_ids=("trainer",),
    ),
    "client": _RoleWork(
        writes=(SERVE_PROMPTS, EVAL_PROMPTS), reads=(SERVE_SCORED, EVAL_SCORED, WEIGHTS, WEIGHTS_APPLIED, LEDGER)
    ),
    "rc-actor": _RoleWork(writes=STREAM_TOPICS, reads=STREAM_TOPICS),
    "viewer": _RoleWork(reads=TOPICS, watches=("generators", "scorers", "trainer", "trainer-presence")),
}
ROLES: Final = (*_WORK, "operator")
"""The stages and servers; feedback, states: their producers; client: `prompt` and `evaluate`; viewer: `status`, `tail`,
`lineage`; operator: every command."""


def acl_rules(run: str, principals: Mapping[str, str]) -> list[AclRule]:
    """The permissions of each role in `principals` (role → principal, such as `User:trainer`), in order."""
    checked_run(run)
    return sorted({rule for role, principal in principals.items() for rule in _rules(run, role, principal)})


def _rules(run: str, role: str, principal: str) -> Iterator[AclRule]:
    if role == "operator":
        everything: tuple[Resource, ...] = ("topic", "group", "transactional_id")
        for resource in everything:
            yield AclRule(principal=principal, resource=resource, name=f"{run}.", operation="ALL", is_prefix=True)
        return
    work = _WORK[role]
    operations: list[tuple[Resource, tuple[str, ...], tuple[str, ...]]] = [
        ("topic", tuple(topic.name for topic in work.writes), ("WRITE", "DESCRIBE")),
        ("topic", tuple(topic.name for topic in work.reads), ("READ", "DESCRIBE")),
        ("topic", tuple(topic.name for topic in work.asks_ends_of), ("DESCRIBE",)),
        ("topic", tuple(topic.name for topic in work.asks_retention_of), ("DESCRIBE_CONFIGS",)),
        ("group", work.joins, ("READ", "DESCRIBE")),
        # Who reads without a group has the name of one nevertheless, see `bus/reader.py`.
        ("group", ("readers",) if work.reads else (), ("DESCRIBE",)),
        ("group", work.watches, ("DESCRIBE",)),
        ("transactional_id", work.transactional_ids, ("WRITE", "DESCRIBE")),
    ]
    for resource, names, allowed in operations:
        for name in names:
            for operation in allowed:
                yield AclRule(principal=principal, resource=resource, name=f"{run}.{name}", operation=operation)
