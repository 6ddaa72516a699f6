"""The environment `running_sum`: add up six digits, two in an answer, so it takes three cycles of `reasoning_cache`.

The problem is `471938`. An answer has room for two sums, so the first one is `4,11`. The summary `1938:11` says what is
left, and the sum so far; from there the next answer is `12,21`. The reward is the share of the digits that are added up
where such an answer ends: a third for one answer alone, and 1 for the last of three. A tiny model learns it on a CPU.

`running_sum_turns` has the turns of this one by one, each with a demonstration, for a warm-up.
"""

import random
from collections.abc import Iterator
from itertools import accumulate, count
from typing import Final

from rollstream.environments.protocol import Split, Task, split_of
from rollstream.environments.rewards.references import reference_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.environments.sort_digits import exact_match
from rollstream.schemas.prompt import Message, Sampling

NUM_DIGITS: Final = 6
AT_ONCE: Final = 2
"""Digits that are added up in one answer."""
REASONING_TEMPLATE: Final = "{problem};{curr_summary}="
SUMMARIZATION_TEMPLATE: Final = "{problem};{existing_summary};{reasoning}#"
"""Without a word, since each character is a token of the tiny model."""
_SAMPLING: Final = Sampling(temperature=1.0, max_tokens=8)


def progress(sample: RewardInput) -> float:
    """The share of the digits that are added up where the answer ends; 0 unless all its sums follow each other.

    One sum alone is worth nothing. Else it would be worth more than two, since it is easier to get right: policies
    learned to say one, and no summary goes on from that.
    """
    sums = list(accumulate(map(int, reference_of(sample))))
    said = sample.completion.split(",")
    if not all(one.isdecimal() and len(one) <= 3 for one in said):
        return 0.0
    numbers = [int(one) for one in said]
    if len(numbers) % AT_ONCE or numbers[0] not in sums:
        return 0.0
    first = sums.index(numbers[0])
    return (first + len(numbers)) / len(sums) if sums[first : first + len(numbers)] == numbers else 0.0


class RunningSum:
    """Problems without end. It has no options; templates of the agent's prompts are those of this module."""

    name = "running_sum"
    rubric = Rubric(WeightedReward("progress", progress))
    sampling = _SAMPLING

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        for row, digits in enumerate(_drawn(split, seed)):
            yield Task(
                task_id=f"{split}/{seed}/{row}",
                messages=(Message(role="user", content=digits),),
                reference_answer=digits,
            )


class RunningSumTurns:
    """One turn of each problem: its prompt, and what is right to answer."""

    name = "running_sum_turns"
    rubric = Rubric(WeightedReward("exact_match", exact_match))
    sampling = _SAMPLING

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        for row, digits in enumerate(_drawn(split, seed)):
            turns = demonstrated(digits)
            asked, answer = turns[row % len(turns)]
            yield Task(
                task_id=f"{split}/{seed}/{row}",
                messages=(Message(role="user", content=asked),),
                reference_answer=answer,
                demonstration=answer,
            )


def demonstrated(digits: str) -> list[tuple[str, str]]:
    """The right turns of a problem, reasoning and summary by turns: prompt and answer."""
    found: list[tuple[str, str]] = []
    summary, total = "", 0
    for start in range(0, len(digits), AT_ONCE):
        sums = list(accumulate(map(int, digits[start : start + AT_ONCE]), initial=total))[1:]
        reasoning, total = ",".join(map(str, sums)), sums[-1]
        found.append((REASONING_TEMPLATE.format(problem=digits, curr_summary=summary), reasoning))
        asked = SUMMARIZATION_TEMPLATE.format(problem=digits, existing_summary=summary, reasoning=reasoning)
        summary = f"{digits[start + AT_ONCE :]}:{total}"
        found.append((asked, summary))
    return found


def _drawn(split: Split, seed: int) -> Iterator[str]:
    """Digits above 0, so that no two sums of a problem are equal; none of them of another split."""
    chooser = random.Random(f"{split}/{seed}")
    for _ in count():
        digits = "".join(chooser.choices("123456789", k=NUM_DIGITS))
        if split_of(digits) == split:
            yield digits
