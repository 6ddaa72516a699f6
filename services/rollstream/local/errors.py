"""What can go wrong with the local stack, each error saying what was found, the bound, and what to change.

LocalStackError
├── JavaMissingError        no Java 17 or newer anywhere
├── JarsUnusableError       a jar of Kafka could not be fetched, or is not the one in the committed lock
├── PortTakenError          a remembered port belongs to another process
├── DiskFullError           too little room where the broker writes
└── StartFailedError        a process of the stack ended, or did not answer in time
"""

from __future__ import annotations

from pathlib import Path

from rollstream.schemas.errors import RollstreamError


class LocalStackError(RollstreamError):
    """The local stack cannot do what was asked; the message says what to change."""

    exit_code = 78  # a person has to change something; a restart alone does not help


class JavaMissingError(LocalStackError):
    """No Java that Kafka runs on was found."""


class JarsUnusableError(LocalStackError):
    """Kafka's jars are not the committed ones and could not be made so."""


class PortTakenError(LocalStackError):
    """A port this stack needs is in use."""


class DiskFullError(LocalStackError):
    """The directory has less room than the broker needs."""


class StartFailedError(LocalStackError):
    """A process of the stack ended early or did not answer before the deadline."""

    exit_code = 70

    @classmethod
    def with_log(cls, what: str, log: Path) -> StartFailedError:
        """Append the last lines of `log`, which is where the reason is."""
        lines = log.read_text(errors="replace").splitlines()[-12:] if log.exists() else ["(no log was written)"]
        return cls(f"{what}; the end of {log}:\n  " + "\n  ".join(lines))
