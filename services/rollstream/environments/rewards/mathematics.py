r"""Rewards of mathematics data sets, each by the rule of its original: gsm8k, MATH, DAPO, NuminaMath, Geometry3K."""

import re
from typing import Final

from rollstream.environments.rewards.equivalence import is_equivalent
from rollstream.environments.rewards.extraction import last_boxed, last_boxed_in_math
from rollstream.environments.rewards.latex import math_form, minerva_form
from rollstream.environments.rewards.references import reference_of
from rollstream.environments.rubric import RewardInput

_END_CHARACTERS: Final = 300
"""gsm8k and DAPO look for the answer only here."""
_HASHES: Final = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_LINE: Final = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_GEOMETRY_FORMAT_WEIGHT: Final = 0.1


def gsm8k(sample: RewardInput) -> float:
    """1 if the number after the last `#### ` is the reference answer, character by character, else 0.

    Commas do not count, so `#### 1,234` is 1234. Only ASCII digits are digits. As in the original `#### 72.` is not 72.
    Unlike verl, which drops the commas of the answer alone: with a reference answer 1,234 nothing is right there.
    """
    found = _HASHES.findall(sample.completion[-_END_CHARACTERS:])
    wanted = reference_of(sample).strip().replace(",", "")
    return float(bool(found) and found[-1].replace(",", "") == wanted)


def math_boxed(sample: RewardInput) -> float:
    r"""1 if what the last `\boxed{…}` holds is the reference answer, both in MATH's form, else 0."""
    wanted, boxed = math_form(reference_of(sample)), last_boxed_in_math(sample.completion)
    return float(boxed is not None and math_form(boxed) == wanted)


def math_dapo(sample: RewardInput) -> float:
    """1 if what the last line `Answer: …` says is the reference answer in Minerva's form, else -1.

    Only the last 300 characters are read. A box counts within such a line alone, as in verl.
    """
    wanted = minerva_form(reference_of(sample))
    lines = _ANSWER_LINE.findall(sample.completion[-_END_CHARACTERS:])
    return 1.0 if lines and minerva_form(lines[-1]) == wanted else -1.0


def numina(sample: RewardInput) -> float:
    """1 if the answer is mathematically the reference answer, else 0. verl has rules of its own here."""
    return float(is_equivalent(sample.completion, reference_of(sample)))


def geometry3k(sample: RewardInput) -> float:
    r"""0.9 if the last `\boxed{…}` holds the reference answer, plus 0.1 for `<think>…</think>…\boxed{…}`, else 0.

    verl asks the library mathruler whether the answer is right; here it is math-verify.
    """
    reference = reference_of(sample)
    boxed = last_boxed(sample.completion)
    is_right = boxed is not None and (
        math_form(boxed) == math_form(reference) or is_equivalent(rf"\boxed{{{boxed}}}", reference)
    )
    weight = _GEOMETRY_FORMAT_WEIGHT
    return (1 - weight) * is_right + weight * _has_thought_then_box(sample.completion)


def _has_thought_then_box(completion: str) -> bool:
    end_of_thought = completion.find("</think>")
    box = completion.find(r"\boxed{", end_of_thought)
    return completion.startswith("<think>") and end_of_thought >= 0 and box >= 0 and "}" in completion[box:]
