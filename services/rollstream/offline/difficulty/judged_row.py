"""Makes of a scored row what its problem's statistics need: which problem, which reward, whether it passes. Pure.

A problem is known by a stable id: a hash of its data source, prompt and ground truth, or a column that a person names.
So its bucket does not depend on the order of the file. `data_idx` is only kept for tracing.

Whether a row passes, and its reward as a number from 0 to 1, come from the columns `passed` and `reward_normalized`
that `analyze-rewards` wrote: it knows which function gave the reward. A file without them is judged by the range and
the threshold of its data source.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from rollstream.environments.rubric import finite
from rollstream.offline.scores.columns import data_source_of
from rollstream.offline.scores.functions import Judging, judging_of
from rollstream.rows.conversation import Row, asked_of, reference_of
from rollstream.rows.plain import without_nulls
from rollstream.schemas.errors import DecodeError, RewardError
from rollstream.schemas.values import text_of, with_whole_numbers

ID_BYTES: Final = 16
_MAX_INT: Final = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRow:
    """One sample of a problem. A reward of None: it is not scored, for the reason in `unscored`."""

    problem: bytes
    source: str
    data_idx: int | None
    reward: float | None = None
    normalized: float | None = None
    passed: bool | None = None
    unscored: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowJudge:
    """How rows are judged. `pass_threshold` of None: each by its own source."""

    id_column: str | None = None
    pass_threshold: float | None = None

    def judged(self, fields: Row) -> JudgedRow:
        """The row's part in the statistics; raises `DecodeError` if it belongs to no problem."""
        source = data_source_of(fields)
        row = JudgedRow(problem=self._problem(fields, source), source=source, data_idx=_data_idx(fields))
        reward, unscored = _reward(fields)
        if reward is None:
            return replace(row, unscored=unscored)
        try:
            normalized, passed = self._judged(fields, source, reward)
        except RewardError as error:
            return replace(row, unscored=f"bad_reward: {error}")
        return replace(row, reward=reward, normalized=normalized, passed=passed)

    def problem(self, fields: Row) -> bytes:
        """The id of the row's problem; raises `DecodeError`."""
        return self._problem(fields, data_source_of(fields))

    def _problem(self, fields: Row, source: str) -> bytes:
        if self.id_column is not None:
            value = fields.get(self.id_column)
            if value is None:
                raise DecodeError(f"its column {self.id_column!r} is absent or null, so it belongs to no problem")
            return _hash(value)
        name, asked = asked_of(fields)
        if not name:
            raise DecodeError("it has no prompt, so it belongs to no problem; name a column with ids by --id_column")
        return _hash([source, asked, reference_of(fields)])

    def _judged(self, fields: Row, source: str, reward: float) -> tuple[float, bool | None]:
        own = _known(source)
        normalized, passed = fields.get("reward_normalized"), fields.get("passed")
        if "reward_normalized" not in fields and own is not None:
            normalized = own.normalized(reward)
        if "passed" not in fields and own is not None:
            passed = own.passes(reward)
        if self.pass_threshold is not None:
            passed = reward >= self.pass_threshold
        # A column of yes and no with gaps comes back from pandas as 1.0 and 0.0.
        is_judged = isinstance(passed, int | float) and passed in (0, 1)
        unit = reward if normalized is None else finite(normalized, "reward_normalized")
        return unit, bool(passed) if is_judged else None


def _reward(fields: Row) -> tuple[float | None, str | None]:
    value = fields.get("reward")
    if value is None:
        told = fields.get("reward_failure")
        return None, text_of(told) if told else "no_reward: the row has no reward"
    try:
        return finite(value, "the reward"), None
    except RewardError as error:
        return None, f"bad_reward: {error}"


def _data_idx(fields: Row) -> int | None:
    value = with_whole_numbers(fields.get("data_idx"))
    is_index = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_INT
    return value if is_index else None


@lru_cache(maxsize=1000)
def _known(source: str) -> Judging | None:
    return judging_of(source)


def _hash(value: Any) -> bytes:
    # Parquet gives every message of a column all fields, JSONL only those that it has: the problem is the same.
    plain = with_whole_numbers(without_nulls(value))
    content = json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()[:ID_BYTES]
