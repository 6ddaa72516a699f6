"""What a campaign's clients need: generators that serve, servers that take feedback in, and who makes rewards of it.

Only the generators that a campaign starts with serve. Whoever joins later leaves again, and the answers in its spool
would stay there.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollstream.local.ports import free_ports

ONES_PER_GROUP: Final = 4
FEEDBACK: Final = "feedback-0"
"""The producer that makes rewards of feedback."""
CONSENTING: Final = "web"
"""The key whose answers may train; those of the other one may not."""
REFUSING: Final = "shy"
METRIC: Final = "thumbs"
_TENANT: Final = "acme"
_SETTLE_SECONDS: Final = 2.0
_DRAIN_SECONDS: Final = 10.0
_NUM_INGEST: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """Where clients find the run.

    `keys`: by the name of the key; `environments`: of processes, by their names.
    """

    generators: tuple[str, ...]
    ingest: tuple[str, ...]
    keys: Mapping[str, str]
    environments: Mapping[str, Mapping[str, str]]
    store: Path

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What the run's file needs, by table."""
        keys = {
            name: {
                "key": key,
                "tenant": _TENANT,
                "environment": "sort_digits",
                "may_train": name == CONSENTING,
                "sampling": "plain",
            }
            for name, key in self.keys.items()
        }
        return {
            # Answers wait for feedback, and for brokers that are away.
            "shared": {"ones_per_group": ONES_PER_GROUP, "max_served_lag": 100_000},
            "serve": {"keys": keys, "drain_seconds": _DRAIN_SECONDS},
            "ingest": {"keys": keys, "confirm_seconds": 5.0},
        }


def serving_run(generators: Sequence[str], run_dir: Path) -> ServingRun:
    """Ports and keys for these generators, for two ingest servers and the producer of feedback."""
    ingest = [f"ingest-{number}" for number in range(_NUM_INGEST)]
    ports = dict(zip([*generators, *ingest], free_ports(len(generators) + len(ingest)), strict=True))
    store = run_dir.resolve() / "feedback.sqlite"
    feedback = {"weights": {METRIC: 1.0}, "settle_seconds": _SETTLE_SECONDS, "store": str(store)}
    return ServingRun(
        generators=tuple(f"127.0.0.1:{ports[name]}" for name in generators),
        ingest=tuple(f"127.0.0.1:{ports[name]}" for name in ingest),
        keys={name: secrets.token_hex(16) for name in (CONSENTING, REFUSING)},
        environments={
            **{name: _of_generator(ports[name], run_dir.resolve() / f"spool-{name}") for name in generators},
            **{name: {"ROLLSTREAM_PORT": str(ports[name])} for name in ingest},
            FEEDBACK: {"ROLLSTREAM_SOURCE": "feedback", "ROLLSTREAM_FEEDBACK": json.dumps(feedback)},
        },
        store=store,
    )


def _of_generator(port: int, spool: Path) -> dict[str, str]:
    prefix = "ROLLSTREAM_SERVE__"
    return {f"{prefix}ENABLED": "true", f"{prefix}PORT": str(port), f"{prefix}SPOOL": str(spool)}
