"""pass@k and its relatives of the rewards of tasks, in percent.

k is each power of 2 up to the number of rollouts that all tasks have, and that number. Rewards of 0 and 1 give the
estimate without bias; any others the largest of the first k. `pass@1[avg-of-k]`: the mean of the first k, and its
standard deviation over the k runs. `majority@k`: the reward of the answer that most of the first k give.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from rollstream.environments.pass_rates import pass_at_k

Judged = Sequence[tuple[float, str | None]]
"""Rewards of a task's rollouts in their order, each with the answer; None for no answer."""


def _zeros() -> defaultdict[int, float]:
    return defaultdict(float)


@dataclass(slots=True)
class _Sums:
    """Over tasks. `runs`: of the first rollouts, the second ones, and so on."""

    num_tasks: int = 0
    best: defaultdict[int, float] = field(default_factory=_zeros)
    average: defaultdict[int, float] = field(default_factory=_zeros)
    majority: defaultdict[int, float] = field(default_factory=_zeros)
    runs: list[float] = field(default_factory=list)
    num_without_answer: int = 0
    num_rollouts: int = 0


def pass_figures(tasks: Callable[[], Iterable[Judged]], *, has_answers: bool) -> dict[str, float]:
    """The figures; none without a reward. `tasks` is called for each of two passes."""
    least, is_binary = _least(tasks())
    if not least:
        return {}
    ks = _ks(least)
    sums = _Sums(runs=[0.0] * least)
    for judged in tasks():
        _add(sums, judged, ks, is_binary=is_binary)
    found: dict[str, float] = {}
    for k in ks:
        found[f"pass@{k}"] = 100 * sums.best[k] / sums.num_tasks
        found[f"pass@1[avg-of-{k}]"] = 100 * sums.average[k] / sums.num_tasks
        if k > 1:
            spread = stdev(100 * run / sums.num_tasks for run in sums.runs[:k])
            found[f"pass@1[avg-of-{k}]/std_dev_across_runs"] = spread
            found[f"pass@1[avg-of-{k}]/std_err_across_runs"] = spread / math.sqrt(k)
        if has_answers:
            found[f"majority@{k}"] = 100 * sums.majority[k] / sums.num_tasks
    if has_answers:
        found["no_answer"] = 100 * sums.num_without_answer / sums.num_rollouts
    return found


def _least(tasks: Iterable[Judged]) -> tuple[int, bool]:
    """How many rollouts each task has at least, and whether all rewards are 0 or 1."""
    least, is_binary = 0, True
    for judged in tasks:
        least = min(least or len(judged), len(judged))
        is_binary = is_binary and all(reward in (0.0, 1.0) for reward, _ in judged)
    return least, is_binary


def _ks(least: int) -> list[int]:
    return sorted({*(2**power for power in range(least.bit_length())), least})


def _add(sums: _Sums, judged: Judged, ks: Sequence[int], *, is_binary: bool) -> None:
    rewards = [reward for reward, _ in judged]
    sums.num_tasks += 1
    sums.num_rollouts += len(judged)
    sums.num_without_answer += sum(answer is None for _, answer in judged)
    for run in range(len(sums.runs)):
        sums.runs[run] += rewards[run]
    for k in ks:
        passed = pass_at_k(len(rewards), int(sum(rewards)), k) if is_binary else max(rewards[:k])
        sums.best[k] += passed
        sums.average[k] += fmean(rewards[:k])
        sums.majority[k] += _majority(judged[:k])


def _majority(judged: Judged) -> float:
    """The reward of the most frequent answer, the earliest of several; 0 if nobody answered."""
    votes = Counter(answer for _, answer in judged if answer is not None)
    if not votes:
        return 0.0
    chosen, _ = votes.most_common(1)[0]
    return next(reward for reward, answer in judged if answer == chosen)
