"""Shows records: as one line each for people, or as JSON for programs.

Ids and texts come from outside. What goes to a terminal passes `say` or `cell`, what goes to a program `json_text`.
"""

import json
import math
from collections import Counter
from datetime import UTC, datetime
from enum import Enum
from functools import singledispatch
from typing import Any

import numpy as np
from rich.text import Text

from rollstream.process.terminal import escaped
from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.ledger import GroupOutcome, LedgerEntry
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import Record
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.weights import WeightsApplied, WeightsPublished
from rollstream.stage.dead_letters import DeadLetter

_TEXT_WIDTH = 60


def cell(value: object, style: str = "") -> Text:
    """A value in a table: never markup, and without control characters."""
    return Text("" if value is None else escaped(str(value)), style=style)


def json_text(value: Any) -> str:
    """JSON that every reader takes: a number that JSON does not have is the text `NaN`, `Infinity` or `-Infinity`."""
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    """A record as JSON types: arrays as lists of numbers, times as ISO 8601, raw bytes as hex."""
    if isinstance(value, Record):
        return {name: plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.tolist() if np.isfinite(value).all() else plain(value.tolist())
    return _plain_leaf(value)


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else value


def quoted(text: str, width: int = _TEXT_WIDTH) -> str:
    """`text` on one line and in quotes, cut to `width` characters."""
    shown = repr(text)
    return shown if len(shown) <= width else f"{shown[: width - 2]}…{shown[-1]}"


def clock(timestamp_ms: int) -> str:
    """A broker's time as HH:MM:SS, UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%H:%M:%S")


def versions(rollout: RolloutGenerated) -> str:
    """The weight versions of a rollout: `v3`; `v3→v4` if version 4 was loaded while it was sampled."""
    return "→".join(f"v{version}" for version in rollout.weight_versions) or "no tokens"


def answer(rollout: RolloutGenerated) -> str:
    """The text of the last turn that answers, or why there is none."""
    return str(rollout.failure or "") if rollout.answer is None else quoted(rollout.answer.text)


@singledispatch
def one_line(record: Record) -> str:
    """The most important parts of a record in one line. Ids are not shortened, so that they can be copied."""
    raise TypeError(f"no line for {type(record).__name__}")


@one_line.register
def _(record: PromptSubmitted) -> str:
    asked = quoted(record.messages[-1].content) if record.messages else "no message"
    reference = "" if record.reference_answer is None else f" reference {quoted(record.reference_answer)}"
    environment = record.environment or "no environment"
    return f"{record.group_id} {record.purpose.value} x{record.group_size} {environment} {asked}{reference}"


@one_line.register
def _(record: ProducerProgress) -> str:
    return (
        f"{record.producer} at {quoted(record.mark)} of {record.source}, next prompt {record.next_sequence}, "
        f"{len(record.open_groups)} groups open"
    )


@one_line.register
def _(record: RolloutGenerated) -> str:
    tokens = f"{record.num_completion_tokens} tokens"
    return f"{record.rollout_id} {record.status.value} {tokens} {versions(record)} {answer(record)}"


@one_line.register
def _(record: RolloutScored) -> str:
    reward = "no reward" if record.scoring.reward is None else f"reward {record.scoring.reward:g}"
    why = f" ({record.scoring.failure})" if record.scoring.failure else ""
    return f"{reward}{why} {one_line(record.rollout)}"


@one_line.register
def _(record: WeightsPublished) -> str:
    megabytes = sum(file.num_bytes for file in record.files) / 1e6
    return (
        f"{record.model} version {record.weight_version}{_parent(record.parent_version)} step {record.step} "
        f"{record.kind.value} {len(record.files)} files {megabytes:.1f} MB {record.uri}"
    )


@one_line.register
def _(record: WeightsApplied) -> str:
    why = f" {record.error}" if record.error else ""
    return (
        f"{record.generator_id} version {record.weight_version} {record.outcome.value} "
        f"stall {record.stall_seconds:.3f} s load {record.load_seconds:.3f} s{why}"
    )


@one_line.register
def _(record: LedgerEntry) -> str:
    reasons = Counter(group.reason for group in record.closed if group.outcome is GroupOutcome.DROPPED)
    dropped = "".join(f", {count} dropped as {reason}" for reason, count in sorted(reasons.items()))
    reward = f" reward {record.metrics['reward_mean']:.3f}" if "reward_mean" in record.metrics else ""
    checkpoint = f" checkpoint {record.checkpoint}" if record.checkpoint else ""
    skipped = f", {len(record.skipped)} records skipped" if record.skipped else ""
    return (
        f"{record.kind.value} {record.step} version {record.weight_version}{_parent(record.parent_version)} "
        f"{len(record.trained)} rollouts, {len(record.closed)} groups closed{dropped}{skipped}{reward}{checkpoint}"
    )


@one_line.register
def _(record: FeedbackGiven) -> str:
    target = record.response_id or record.rollout_id or f"session {record.session}"
    value = quoted(record.text or "") if record.number is None else f"{record.number:g}"
    return f"{target} {record.metric} {value} by {record.client} of {record.tenant}"


@one_line.register
def _(record: TurnProgress) -> str:
    tokens = "" if record.turn is None else f" {len(record.turn.token_ids)} tokens"
    session = f" session {record.session_id} of {record.tools}" if record.tools else ""
    return f"{record.key} {record.kind.value}{tokens}{session} attempt {record.attempt_id} by {record.generator_id}"


def dead_letter_line(letter: DeadLetter) -> str:
    """A dead letter in one line. Its identity comes first, to be copied into `dead-letters replay`."""
    cut = "" if letter.cut_from_bytes is None else f" of {letter.cut_from_bytes}"
    size = "null value" if letter.num_bytes is None else f"{letter.num_bytes}{cut} bytes"
    state = f" replayed {letter.replayed_at}" if letter.replayed_at else ""
    doubt = f" {letter.doubt.kind.upper()}: {letter.doubt.why}" if letter.doubt else ""
    said = f"{letter.error_class}: {quoted(letter.error_message, 120)}"
    return f"{letter.identity} {letter.failed_at} {size} {said}{state}{doubt}"


def _parent(version: int | None) -> str:
    return "" if version is None else f" ← {version}"
