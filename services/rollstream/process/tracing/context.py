"""W3C trace context in the headers of records: read, checked, written; without OpenTelemetry.

Anybody may write headers, and what a prompt carries is copied to each of its samples. So only a well-formed
`traceparent` counts, with at most 512 bytes of well-formed `tracestate`. All else, `baggage` too, goes no further. Of
several headers of one name the last counts, as Kafka's clients have it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
MAX_TRACESTATE_BYTES: Final = 512
_MAX_MEMBERS: Final = 32
# Later versions of the standard may append to it; what they append is not passed on.
_MAX_TRACEPARENT_BYTES: Final = 256
_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_MEMBER: Final = re.compile(
    rb"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})="
    rb"([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)

TraceHeaders = tuple[tuple[str, bytes], ...]


class TraceContext(NamedTuple):
    """One span of some process: its ids, flags of 8 bits, and what vendors say of its trace."""

    trace_id: int
    span_id: int
    flags: int = 0
    tracestate: str = ""

    @property
    def headers(self) -> TraceHeaders:
        parent = f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"
        headers: TraceHeaders = ((TRACEPARENT, parent.encode()),)
        return (*headers, (TRACESTATE, self.tracestate.encode())) if self.tracestate else headers


def log_keys(context: TraceContext | None) -> dict[str, str]:
    """The ids as keys of log lines; none without a context."""
    if context is None:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def context_in(headers: Iterable[tuple[str, bytes | None]]) -> TraceContext | None:
    """The context that a record's headers hold; None without a well-formed one. Never raises."""
    parent, state = b"", b""
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value or b""
        elif name == TRACESTATE:
            state = value or b""
    return _context(parent, state) if parent else None


def headers_of_environment(variables: Mapping[str, str] = os.environ) -> TraceHeaders:
    """The headers for what this process submits, if whoever started it left a context in TRACEPARENT and TRACESTATE."""
    values = ((name, variables.get(name.upper(), "").encode("ascii", "replace")) for name in (TRACEPARENT, TRACESTATE))
    context = context_in(values)
    return () if context is None else context.headers


def _context(parent: bytes, state: bytes) -> TraceContext | None:
    found = _PARENT.fullmatch(parent) if len(parent) <= _MAX_TRACEPARENT_BYTES else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_known = version != b"ff" and not (version == b"00" and more)
    if not is_known or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(int(trace_id, 16), int(span_id, 16), int(flags, 16), _state(state))


def _state(value: bytes) -> str:
    """The value, if all of it is well-formed; else nothing of it."""
    members = [member for part in value.split(b",") if (member := part.strip(b" \t"))] if value else []
    if not members or len(value) > MAX_TRACESTATE_BYTES or len(members) > _MAX_MEMBERS:
        return ""
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {member[1] for member in found if member is not None}
    return b",".join(members).decode("ascii") if len(keys) == len(members) else ""
