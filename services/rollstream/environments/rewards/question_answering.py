"""The reward of the seven question-answering sets of Search-R1: exact match of the answer in its tags."""

import re
import string
from typing import Final

from rollstream.environments.rewards.extraction import last_tagged
from rollstream.environments.rewards.references import nested, reference_of
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import RewardError

_MAX_TAGS: Final = 10
_SPAM_SCORE: Final = 0.25
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def exact_match(sample: RewardInput) -> float:
    """1 if the text in the last pair of `<answer>` tags is one of the reference answers, else 0.

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
