"""Rollouts that are kept by their reward, and what SFT and DPO learn from them: chat messages, the prompt's too."""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from rollstream.gym.names import PARAMS
from rollstream.gym.options import FilterOptions, PairOptions
from rollstream.gym.score_table import key_of
from rollstream.gym.transcript import has_output, messages_of, prompt_messages, usage_of
from rollstream.process.database import Database
from rollstream.process.terminal import Say
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow, RowSource
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError

Row = dict[str, Any]
_TABLES: Final = """
CREATE TABLE rollouts (agent TEXT, task INTEGER, reward REAL, rollout INTEGER, fields TEXT,
    PRIMARY KEY (agent, task, reward, rollout)) WITHOUT ROWID;
"""


def filter_rollouts(options: FilterOptions, say: Say) -> None:
    """Keep rollouts whose reward is large enough, and say how many tokens they and all of them took."""
    kept, seen = _Totals(), _Totals()
    with write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        for row in _rollouts(open_rows(options.rollouts_jsonl_fpath)):
            seen.add(row)
            if _has(row, options.minimum_reward):
                kept.add(row)
                writer.write(row)
    say(f"{options.output_jsonl_fpath}: {kept.num_rows} of {seen.num_rows} rollouts have a reward of at least "
        f"{options.minimum_reward:g}")  # fmt: skip
    say(f"tokens of those: {kept.told()}; of all: {seen.told()}")


def export_sft(options: FilterOptions, say: Say) -> None:
    """Write a conversation a line, with the prompt's messages, of rollouts whose reward is large enough."""
    num_rows = 0
    with write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        for row in _rollouts(open_rows(options.rollouts_jsonl_fpath)):
            if _has(row, options.minimum_reward):
                messages = [*_prompt(row), *messages_of(row["response"]["output"])]
                writer.write({"messages": messages, **_tools(row), "reward": row["reward"]})
                num_rows += 1
    say(f"{options.output_jsonl_fpath}: {num_rows} conversations")


def export_dpo(options: PairOptions, say: Say) -> None:
    """Write pairs of a task's rollouts: best and worst, second best and second worst, as long as they differ enough."""
    num_pairs = num_tasks = 0
    with Database(None, _TABLES) as database, write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        _keep(open_rows(options.rollouts_jsonl_fpath), database)
        query = "SELECT agent, task, reward, fields FROM rollouts ORDER BY agent, task, reward, rollout"
        for _, found in groupby(database.read(query), key=lambda one: one[:2]):
            num_tasks += 1
            ranked = [(float(reward), str(fields)) for _, _, reward, fields in found]
            for pair in _pairs(ranked, options.minimum_difference):
                writer.write(pair)
                num_pairs += 1
    say(f"{options.output_jsonl_fpath}: {num_pairs} pairs of {num_tasks} tasks")


def _pairs(ranked: list[tuple[float, str]], least: float) -> Iterator[Row]:
    for place in range(len(ranked) // 2):
        (low, worse), (high, better) = ranked[place], ranked[-1 - place]
        if high - low < least:
            return
        chosen, rejected = json.loads(better), json.loads(worse)
        yield {
            "prompt": _prompt(chosen),
            "chosen": messages_of(chosen["response"]["output"]),
            "rejected": messages_of(rejected["response"]["output"]),
            **_tools(chosen),
            "chosen_reward": high,
            "rejected_reward": low,
        }


def _keep(rows: RowSource, database: Database) -> None:
    """What the pairs need of rollouts with a reward, on disk."""
    for row in rows:
        if isinstance(row, ReadRow) and has_output(row.fields) and _has(row.fields, None):
            agent, task, rollout = key_of(row)
            fields = json.dumps({PARAMS: row.fields.get(PARAMS), "response": row.fields["response"]})
            database.run(
                "INSERT OR REPLACE INTO rollouts VALUES (?, ?, ?, ?, ?)",
                agent, task, row.fields["reward"], rollout, fields,
            )  # fmt: skip


class _Totals:
    """Rollouts and their tokens."""

    def __init__(self) -> None:
        self.num_rows = self.num_unknown = self.input_tokens = self.output_tokens = 0

    def add(self, row: Mapping[str, Any]) -> None:
        usage = usage_of(row["response"])
        self.num_rows += 1
        self.input_tokens += usage["input_tokens"] or 0
        self.output_tokens += usage["output_tokens"] or 0
        self.num_unknown += usage["input_tokens"] is None or usage["output_tokens"] is None

    def told(self) -> str:
        """For people. What was not reported is said, not counted as 0."""
        unknown = f", and {self.num_unknown} rollouts did not report them" if self.num_unknown else ""
        return f"{self.input_tokens} in, {self.output_tokens} out{unknown}"


def _rollouts(rows: RowSource) -> Iterator[Row]:
    """The rows of a file of rollouts. Raises `ConfigurationError` for one that is none."""
    for row in rows:
        if not isinstance(row, ReadRow) or not has_output(row.fields):
            raise ConfigurationError(f"{row.where}: no response.output: is it a file of ng_collect_rollouts?")
        yield row.fields


def _has(row: Mapping[str, Any], least: float | None) -> bool:
    """Whether a row has a reward, and one that is large enough; a missing one is no 0."""
    reward = row.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return False
    return least is None or reward >= least


def _prompt(row: Mapping[str, Any]) -> list[Row]:
    params = row.get(PARAMS) or {}
    instructions = params.get("instructions")
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    return [*system, *prompt_messages(params.get("input") or [])]


def _tools(row: Mapping[str, Any]) -> Row:
    tools = (row.get(PARAMS) or {}).get("tools")
    return {"tools": tools} if tools else {}
