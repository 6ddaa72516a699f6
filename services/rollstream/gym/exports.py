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
from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import ConfigurationError

Row = dict[str, Any]
Ranked = tuple[float, int]
"""Reward and number of a rollout."""

_TABLES: Final = """
CREATE TABLE rollouts (agent TEXT, task INTEGER, rollout INTEGER, reward REAL, fields TEXT,
    PRIMARY KEY (agent, task, rollout));
"""
_RANKED: Final = "SELECT agent, task, reward, rollout FROM rollouts ORDER BY agent, task, reward, rollout"
_FIELDS: Final = "SELECT fields FROM rollouts WHERE agent = ? AND task = ? AND rollout = ?"


def filter_rollouts(options: FilterOptions, say: Say) -> None:
    """Keep rollouts whose reward is large enough, and say how many tokens they and all of them took."""
    kept, seen = _Totals(), _Totals()
    with write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        for row in _rollouts(open_rows(options.rollouts_jsonl_fpath)):
            seen.add(row.fields)
            if _reaches(row, options.minimum_reward):
                kept.add(row.fields)
                writer.write(row.fields)
    say(f"{options.output_jsonl_fpath}: {kept.num_rows} of {seen.num_rows} rollouts have a reward of at least "
        f"{options.minimum_reward:g}")  # fmt: skip
    say(f"tokens of those: {kept.told()}; of all: {seen.told()}")


def export_sft(options: FilterOptions, say: Say) -> None:
    """Write a conversation a line, with the prompt's messages, of rollouts whose reward is large enough."""
    num_rows = 0
    with write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        for row in _rollouts(open_rows(options.rollouts_jsonl_fpath)):
            if _reaches(row, options.minimum_reward):
                said = messages_of(row.fields["response"]["output"])
                writer.write({"messages": [*_prompt(row.fields), *said], **_tools(row.fields), "reward": _reward(row)})
                num_rows += 1
    say(f"{options.output_jsonl_fpath}: {num_rows} conversations")


def export_dpo(options: PairOptions, say: Say) -> None:
    """Write pairs of a task's rollouts: best and worst, second best and second worst, as long as they differ enough."""
    num_pairs = num_tasks = 0
    with Database(None, _TABLES) as database, write_rows(options.output_jsonl_fpath, "jsonl") as writer:
        for row in _rollouts(open_rows(options.rollouts_jsonl_fpath)):
            _keep(row, database)
        for key, found in groupby(database.read(_RANKED), key=lambda one: one[:2]):
            num_tasks += 1
            for better, worse in _pairs([one[2:] for one in found], options.minimum_difference):
                writer.write(_pair(database, key, better, worse))
                num_pairs += 1
    say(f"{options.output_jsonl_fpath}: {num_pairs} pairs of {num_tasks} tasks")


def _keep(row: ReadRow, database: Database) -> None:
    """What a pair needs of a rollout with a reward, on disk. Raises `ConfigurationError` if it is there already."""
    reward, (agent, task, rollout) = _reward(row), key_of(row)
    if reward is None:
        return
    fields = json.dumps({PARAMS: row.fields.get(PARAMS), "response": row.fields["response"]})
    if not database.run("INSERT OR IGNORE INTO rollouts VALUES (?, ?, ?, ?, ?)", agent, task, rollout, reward, fields):
        raise ConfigurationError(f"{row.where}: rollout {rollout} of task {task} of {agent} is there twice")


def _pairs(ranked: list[Ranked], least: float) -> Iterator[tuple[Ranked, Ranked]]:
    """Better and worse of the rollouts of a task, which are ordered by their rewards."""
    for place in range(len(ranked) // 2):
        worse, better = ranked[place], ranked[-1 - place]
        if better[0] - worse[0] < least:
            return
        yield better, worse


def _pair(database: Database, key: tuple[Any, ...], better: Ranked, worse: Ranked) -> Row:
    chosen, rejected = (json.loads(database.one(_FIELDS, *key, one[1])[0]) for one in (better, worse))  # type: ignore[index]
    return {
        "prompt": _prompt(chosen),
        "chosen": messages_of(chosen["response"]["output"]),
        "rejected": messages_of(rejected["response"]["output"]),
        **_tools(chosen),
        "chosen_reward": better[0],
        "rejected_reward": worse[0],
    }


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


def _rollouts(rows: RowSource) -> Iterator[ReadRow]:
    """The rows of a file of rollouts. Raises `ConfigurationError` for one that is none."""
    for row in rows:
        if not isinstance(row, ReadRow):
            raise ConfigurationError(f"{row.where}: {row.why}; remove that line")
        if not has_output(row.fields):
            raise ConfigurationError(f"{row.where}: no response.output: is it a file of ng_collect_rollouts?")
        yield row


def _reward(row: ReadRow) -> float | None:
    """Its reward; None without one, and where its server says that it means nothing: that is no 0."""
    reward = row.fields.get("reward")
    if row.fields.get("mask_sample") is True or row.fields.get("failure_kind"):
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    return float(reward) if abs(reward) <= MAX_REWARD else None


def _reaches(row: ReadRow, least: float) -> bool:
    reward = _reward(row)
    return reward is not None and reward >= least


def _prompt(row: Mapping[str, Any]) -> list[Row]:
    params = _params(row)
    instructions = params.get("instructions")
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    return [*system, *prompt_messages(params.get("input") or [])]


def _tools(row: Mapping[str, Any]) -> Row:
    tools = _params(row).get("tools")
    return {"tools": tools} if tools else {}


def _params(row: Mapping[str, Any]) -> Mapping[str, Any]:
    params = row.get(PARAMS)
    return params if isinstance(params, dict) else {}
