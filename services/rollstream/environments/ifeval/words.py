"""Instructions about words, letters and their case."""

import re
from typing import Final

from rollstream.environments.ifeval.arguments import Arguments, holds, number, text, texts
from rollstream.environments.ifeval.language import possible_languages
from rollstream.schemas.errors import RewardError

_WORD: Final = re.compile(r"\w+")
_SPELLED_WORD: Final = re.compile(r"\w+(?:['\u2019-]\w+)*")


def has_keywords(response: str, arguments: Arguments) -> bool:
    """Each keyword is somewhere in the response, in upper or lower case."""
    return all(_count(keyword, response) for keyword in texts(arguments, "keywords"))


def keyword_frequency(response: str, arguments: Arguments) -> bool:
    """The keyword comes often enough, or rarely enough; within a longer word it counts too."""
    return holds(_count(text(arguments, "keyword").strip(), response), arguments, "frequency")


def has_no_forbidden_word(response: str, arguments: Arguments) -> bool:
    """None of the words is there as a word of its own."""
    words = texts(arguments, "forbidden_words")
    # Not `\b`, which asks for a letter where a word such as "c++" ends with none.
    return not any(re.search(rf"(?i)(?<!\w){re.escape(word.strip() or word)}(?!\w)", response) for word in words)


def letter_frequency(response: str, arguments: Arguments) -> bool:
    """The letter comes often enough, or rarely enough, in upper or lower case."""
    letter = text(arguments, "letter").strip().lower()
    if len(letter) != 1:
        raise RewardError(f"argument 'letter' is {letter[:100]!r}, not one letter")
    return holds(response.lower().count(letter), arguments, "let_frequency", "let_relation")


def number_of_words(response: str, arguments: Arguments) -> bool:
    """Words are runs of letters, digits and underscores, so that "don't" is two."""
    return holds(len(_WORD.findall(response)), arguments, "num_words")


def capital_word_frequency(response: str, arguments: Arguments) -> bool:
    """Words of capital letters alone; "I" is one, and "NON-STOP" too."""
    count = sum(word.isupper() for word in _SPELLED_WORD.findall(response))
    return holds(count, arguments, "capital_frequency", "capital_relation")


def is_english_capital(response: str, arguments: Arguments) -> bool:
    """All letters are capital, and the language may be English."""
    return response.isupper() and "en" in possible_languages(response)


def is_english_lowercase(response: str, arguments: Arguments) -> bool:
    """All letters are small, and the language may be English."""
    return response.islower() and "en" in possible_languages(response)


def nth_paragraph_first_word(response: str, arguments: Arguments) -> bool:
    """There are so many paragraphs, with an empty line between them, and the nth begins with the word."""
    paragraphs = response.split("\n\n")
    nth, wanted = number(arguments, "nth_paragraph"), text(arguments, "first_word").strip().lower()
    if sum(bool(paragraph.strip()) for paragraph in paragraphs) != number(arguments, "num_paragraphs"):
        return False
    words = paragraphs[nth - 1].split() if 1 <= nth <= len(paragraphs) else []
    return bool(words) and re.split(r"[.,?!'\"]", words[0].lstrip("'\""), maxsplit=1)[0].lower() == wanted


def _count(keyword: str, response: str) -> int:
    return len(re.findall(re.escape(keyword), response, re.IGNORECASE))
