r"""Rewards of data sets, each by the rule of its original: gsm8k, MATH, DAPO, NuminaMath, Geometry3K, Search-R1."""

import re
import string
from typing import Final

from rollstream.environments.rewards.equivalence import is_equivalent
from rollstream.environments.rewards.extraction import last_boxed, last_boxed_in_math, last_tagged
from rollstream.environments.rewards.latex import math_form, minerva_form
from rollstream.environments.rewards.references import nested, reference_of
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import RewardError

_END_CHARACTERS: Final = 300
"""gsm8k and DAPO look for the answer only here."""
_HASHES: Final = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_LINE: Final = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_GEOMETRY_FORMAT_WEIGHT: Final = 0.1
_MAX_TAGS: Final = 10
_SPAM_SCORE: Final = 0.25
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


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


def equivalent(sample: RewardInput) -> float:
    """1 if the answer is mathematically the reference answer, else 0. verl has rules of its own for NuminaMath."""
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


def search_r1(sample: RewardInput) -> float:
    """1 if the text in the last pair of `<answer>` tags is one of the reference answers, else 0.

    The rule of Search-R1's seven question-answering sets.
    A right answer among more than 10 opening or closing tags gets 0.25: it is one of many guesses. Upper and lower
    case, punctuation, articles and spaces do not count. The reference answer is a text, a JSON list of texts, or
    `{"target": …}` with either.
    """
    text = sample.completion
    wanted = {_normalized(answer) for answer in _answers(reference_of(sample))}
    found = last_tagged(text)
    if found is None or _normalized(found) not in wanted:
        return 0.0
    is_spam = text.count("<answer>") > _MAX_TAGS or text.count("</answer>") > _MAX_TAGS
    return _SPAM_SCORE if is_spam else 1.0


def _answers(reference: str) -> list[str]:
    given = nested(reference)
    if isinstance(given, dict):
        given = given.get("target")
    answers = [given] if isinstance(given, str) else given
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise RewardError(
            f"the reference answer {reference[:200]!r} is neither a text nor a list of texts nor has them as 'target'"
        )
    # A blank one is an absent one; compared, it would make an empty answer right.
    given_answers = [answer for answer in answers if answer.strip()]
    if not given_answers:
        raise RewardError(f"the reference answer {reference[:200]!r} holds no answer: add one")
    return given_answers


def _normalized(text: str) -> str:
    without_articles = re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(without_articles.split())
