"""Rows of verifiers' results.jsonl and our rows of rollouts, converted into each other without loss. Pure.

Our row has the columns of `word-count-rollouts`, and `example_id`, `status` and `failure`. The row of verifiers without
its conversation travels as JSON text in `metadata["verifiers"]`, and comes out as it was. verifiers gives a sample that
an error ended the reward 0.0. Here it has none, and its status is `unresolved`.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rollstream.rows.conversation import exchange_in, plain_chat, reference_of
from rollstream.rows.plain import without_nulls

Fields = Mapping[str, Any]

KEPT: Final = "verifiers"
"""The key of `metadata` that holds the row of verifiers."""
_FAILURES: Final = ("failure", "scoring_failure", "reward_failure")
"""Why a row has no response, or no reward, in the columns of the commands."""
_CONVERSATION: Final = ("prompt", "completion")
_OWN: Final = frozenset(
    {"example_id", "prompt", "completion", "answer", "info", "reward", "status", "failure", "metadata"}
)
_RESULT: Final = frozenset({*_OWN, "response", "error", "is_completed", "metrics"})


def row_from_verifiers(result: Fields) -> dict[str, Any]:
    """Our row of a row of results.jsonl. Metrics become columns, unless a column of ours has the name."""
    error = result.get("error")
    metrics = result.get("metrics")
    named = {name: value for name, value in metrics.items() if name not in _OWN} if isinstance(metrics, dict) else {}
    return {
        "example_id": result.get("example_id"),
        "prompt": without_nulls(result.get("prompt")),
        "completion": without_nulls(result.get("completion")),
        "reward": None if error else result.get("reward"),
        **named,
        "answer": result.get("answer"),
        "info": result.get("info"),
        "status": "unresolved" if error else "completed",
        "failure": _error_text(error),
        "metadata": {KEPT: json.dumps(_kept_from(result), ensure_ascii=False)},
    }


def row_to_verifiers(row: Fields, number: int, *, zero_for_failed: bool = False) -> dict[str, Any]:
    """A row of results.jsonl. `number`: the row's in its file, which is its example's id if it names none.

    An imported row comes out as it was, but with the reward and the metrics that its columns have now. Of another one,
    columns that verifiers does not know stay as they are. `zero_for_failed`: the reward 0.0 where there is none, as
    verifiers writes; else null.
    """
    kept = kept_of(row)
    if kept is not None:
        return _restored(row, kept)
    metrics = metrics_of(row)
    reward = row.get("reward")
    asked, answer = exchange_in(row)
    result = {
        "example_id": next((row[name] for name in ("example_id", "data_idx") if row.get(name) is not None), number),
        "prompt": plain_chat(asked, "user"),
        "completion": plain_chat(answer, "assistant"),
        "answer": reference_of(row),
        "info": row.get("info"),
        "reward": 0.0 if reward is None and zero_for_failed else reward,
        "error": _error_of(row) if reward is None else None,
        "is_completed": row.get("status", "completed") == "completed",
        "metrics": metrics,
        **{name: row[name] for name in extra_columns(row)},
    }
    # verifiers leaves these two out where they are empty.
    return {name: value for name, value in result.items() if value or name not in ("answer", "info")}


def kept_of(row: Fields) -> dict[str, Any] | None:
    """What an import kept of the row; None if the row was not imported, or somebody else wrote the key."""
    metadata = row.get("metadata")
    text = metadata.get(KEPT) if isinstance(metadata, Mapping) else None
    try:
        kept = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return kept if isinstance(kept, dict) else None


def metrics_of(row: Fields) -> dict[str, float]:
    """The single rewards of a row that was not imported: numbers called `NAME_reward` or `reward_NAME`."""
    return {
        name: value
        for name, value in row.items()
        if (name.endswith("_reward") or name.startswith("reward_"))
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }


def extra_columns(row: Fields) -> list[str]:
    """The columns of a row that was not imported that stay as they are: metrics, and what verifiers does not know."""
    return [name for name, value in row.items() if name not in _RESULT - {"metadata"} and value is not None]


def _kept_from(result: Fields) -> dict[str, Any]:
    """All but the conversation, which is the largest part; that too where the columns don't hold it exactly."""
    return {
        name: value
        for name, value in result.items()
        if name not in _CONVERSATION or not isinstance(value, list) or without_nulls(value) != value
    }


def _restored(row: Fields, kept: dict[str, Any]) -> dict[str, Any]:
    columns = {
        name: _conversation(row[name]) for name in _CONVERSATION if name not in kept and row.get(name) is not None
    }
    result = {**columns, **kept}
    if row.get("reward") is not None and row["reward"] != kept.get("reward"):
        # Where there was an error, the reward was given afterwards.
        result.update({"reward": row["reward"], **({"error": None} if kept.get("error") else {})})
    metrics = kept.get("metrics")
    if not isinstance(metrics, dict):
        return result
    changed = {
        name: row[name]
        for name, value in metrics.items()
        if name not in _OWN and row.get(name) is not None and row[name] != value
    }
    flattened = {name: value for name, value in changed.items() if name in kept}
    return {**result, "metrics": {**metrics, **changed}, **flattened}


def _conversation(column: Any) -> Any:
    """A conversation from its column, which holds JSON text where no type of a column holds those of all rows."""
    if not isinstance(column, str):
        return without_nulls(column)
    try:
        return without_nulls(json.loads(column))
    except (ValueError, RecursionError):
        return column


def _first_of(row: Fields, *names: str) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _error_text(error: Any) -> str | None:
    if not error:
        return None
    if isinstance(error, Mapping):
        named = error.get("error_chain_str") or error.get("error")
        return str(named or json.dumps(error, ensure_ascii=False))
    return str(error)


def _error_of(row: Fields) -> dict[str, str]:
    """An error in verifiers' form: its readers take a row without one for a scored row."""
    text = str(_first_of(row, *_FAILURES) or "no reward was given")
    # Of a sample that completed it is the reward that failed.
    status = row.get("status")
    name = "unscored" if status in (None, "", "completed") else str(status)
    return {"error": name, "error_chain_repr": text, "error_chain_str": text}
