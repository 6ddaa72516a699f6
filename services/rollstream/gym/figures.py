"""What `ng_collect_rollouts` prints at the end: the document's four figures, Gym's means, and advice."""

import math
from typing import Any, Final

from rollstream.gym.aggregate import task_metrics
from rollstream.gym.score_table import REWARD, ScoreTable
from rollstream.offline.live import LiveCounts
from rollstream.offline.statistics import RewardStatistics

_DOCUMENT: Final = {
    "avg_reward": REWARD,
    "success_rate": "success",
    "avg_tool_calls": "metadata/tool_calls_made",
    "avg_response_length": "metadata/output_tokens",
}
_LOW_SUCCESS: Final = 0.3
_WIDE: Final = 0.25
_OFTEN: Final = 0.3


def figures_of(table: ScoreTable, counts: LiveCounts) -> dict[str, Any]:
    """Means over the rollouts of all agents; null for what no rollout says. Lengths are in tokens."""
    means = {field: _mean(table, field) for field in _fields(table)}
    document = {name: means.get(field) for name, field in _DOCUMENT.items()}
    rate = 60 * counts.num_ended / counts.elapsed_seconds if counts.num_ended else None
    left: dict[str, int] = {}
    for (agent, _), number in table.missing().items():
        left[agent] = left.get(agent, 0) + number
    return {
        **document,
        **{f"mean/{field}": mean for field, mean in means.items()},
        "rollouts_per_minute": rate,
        "left": {**dict.fromkeys(table.agents(), 0), **left},
    }


def advice(table: ScoreTable, counts: LiveCounts, num_in_parallel: int) -> list[str]:
    """What to change where success is rare, rewards of a task vary widely, or the bound in flight limits the rate."""
    lines = []
    rate = _mean(table, "success")
    if rate is not None and rate < _LOW_SUCCESS:
        lines.append(
            f"success_rate is {rate:.2f}, below {_LOW_SUCCESS}: simplify the tasks or add examples, look at "
            "how the resources server verifies, or raise +responses_create_params.max_output_tokens"
        )
    spread = _mean_spread(table)
    if spread is not None and spread > _WIDE:
        lines.append(
            f"rewards of the same task differ: their standard deviation is {spread:.2f} on average, above {_WIDE}: "
            "lower +responses_create_params.temperature, say more in the tasks, or keep the best (`gym filter`)"
        )
    share = counts.looks_at_bound / counts.num_looks if counts.num_looks else 0.0
    if share > _OFTEN:
        speed = counts.num_ended / counts.elapsed_seconds
        lines.append(
            f"{speed:.2f} rollouts a second, and all {num_in_parallel} places were taken {share:.0%} of the time: "
            "raise +num_samples_in_parallel, as long as the servers keep up"
        )
    return lines


def _fields(table: ScoreTable) -> list[str]:
    return sorted({field for agent in table.agents() for field in table.fields(agent)})


def _mean(table: ScoreTable, field: str) -> float | None:
    statistics = RewardStatistics()
    for agent in table.agents():
        for value in table.values(agent, field):
            statistics.add(value)
    return statistics.mean if statistics.num else None


def _mean_spread(table: ScoreTable) -> float | None:
    """The mean over tasks of the standard deviation of their rewards; None if no task has two rollouts."""
    summed, num_tasks = 0.0, 0
    for agent in table.agents():
        for task in task_metrics(table, agent):
            std = task.get(f"std/{REWARD}")
            if std is not None and math.isfinite(std):
                summed, num_tasks = summed + std, num_tasks + 1
    return summed / num_tasks if num_tasks else None
