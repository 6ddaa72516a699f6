"""Metrics of rollouts, of each agent and each of its tasks: mean, max, min, median and std of each numeric field.

std is that of a sample (ddof 1), as Gym's; null for one rollout. Figures of passing are in percent, and say so.
"""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

from rollstream.gym.names import AGENT, MATERIALIZED, METRICS, TASK, beside
from rollstream.gym.pass_figures import pass_figures
from rollstream.gym.score_table import ScoreTable
from rollstream.offline.statistics import RewardStatistics
from rollstream.process.files import replacing, writable
from rollstream.rows.open import open_rows

Metrics = dict[str, Any]
_UNIT: Final = "percent"


def write_metrics(table: ScoreTable, path: Path) -> None:
    """Write a JSON list with one object an agent. Tasks are written one by one, so that memory stays flat."""
    with replacing(path) as stream, writable(path):
        stream.write(b"[")
        for number, agent in enumerate(table.agents()):
            head = json.dumps(agent_metrics(table, agent), allow_nan=False).encode()
            stream.write(b",\n" * bool(number) + head[:-1] + b', "group_level_metrics": [')
            for place, task in enumerate(task_metrics(table, agent)):
                stream.write(b",\n" * bool(place) + json.dumps(task, allow_nan=False).encode())
            stream.write(b"]}")
        stream.write(b"]\n")


def agent_metrics(table: ScoreTable, agent: str) -> Metrics:
    """The object of an agent, without its tasks."""
    num_tasks, num_rollouts = table.agents()[agent]
    figures: Metrics = {}
    for field in table.fields(agent):
        figures.update(_figures(table, agent, field))
    passes = pass_figures(lambda: table.rewards(agent), has_answers=table.has_answers)
    return {
        AGENT: {"name": agent},
        "num_tasks": num_tasks,
        "num_rollouts": num_rollouts,
        "agent_metrics": {**figures, **{f"{name}/reward": value for name, value in passes.items()}},
        "unit_of_passes": _UNIT,
    }


def task_metrics(table: ScoreTable, agent: str) -> Iterator[Metrics]:
    """One object a task."""
    for task, fields in table.by_task(agent):
        num_rollouts = max(map(len, fields.values()))
        found: Metrics = {AGENT: {"name": agent}, TASK: task, "num_rollouts": num_rollouts}
        for field, values in fields.items():
            found.update(_of_values(field, values))
        yield found


def table_beside(output: Path) -> ScoreTable:
    """The numbers of the rollouts in `output`, and which there should be, if the file beside it says that."""
    table = ScoreTable()
    if output.exists():
        table.read(open_rows(output))
    inputs = beside(output, MATERIALIZED)
    if inputs.exists():
        table.expect(open_rows(inputs))
    return table


def metrics_path(output: Path) -> Path:
    """Where the metrics of an output are."""
    return beside(output, METRICS)


def _figures(table: ScoreTable, agent: str, field: str) -> Metrics:
    """Of all rollouts: their numbers are read twice, once for the middle."""
    statistics = RewardStatistics()
    for value in table.values(agent, field):
        statistics.add(value)
    num = statistics.num
    std = statistics.std * math.sqrt(num / (num - 1)) if num > 1 else None
    return {
        f"mean/{field}": statistics.mean,
        f"max/{field}": statistics.highest,
        f"min/{field}": statistics.lowest,
        f"median/{field}": middle(table.values(agent, field), num),
        f"std/{field}": std,
    }


def middle(ascending: Iterator[float], num: int) -> float:
    """The median of `num` numbers."""
    return fmean(value for place, value in enumerate(ascending) if (num - 1) // 2 <= place <= num // 2)


def _of_values(field: str, values: Sequence[float]) -> Metrics:
    return {
        f"mean/{field}": fmean(values),
        f"max/{field}": max(values),
        f"min/{field}": min(values),
        f"median/{field}": median(values),
        f"std/{field}": stdev(values) if len(values) > 1 else None,
    }
