"""Instructions about marks and formats: placeholders, highlights, titles, JSON, fixed answers, commas."""

import json
import re
from typing import Final

from rollstream.environments.ifeval.arguments import Arguments, number

_FIXED_ANSWERS: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def number_of_placeholders(response: str, arguments: Arguments) -> bool:
    """At least so many texts in square brackets, such as [address]."""
    return len(re.findall(r"\[[^\[\]\n]*\]", response)) >= number(arguments, "num_placeholders")


def number_of_highlights(response: str, arguments: Arguments) -> bool:
    """At least so many texts between single or double asterisks; empty ones don't count."""
    double = re.findall(r"\*\*([^\n*]+)\*\*", response)
    single = re.findall(r"\*([^\n*]+)\*", re.sub(r"\*\*[^\n*]+\*\*", " ", response))
    return sum(bool(part.strip()) for part in double + single) >= number(arguments, "num_highlights")


def has_title(response: str, arguments: Arguments) -> bool:
    """A text between << and >> in one line, not empty."""
    return any(title.strip("<> ") for title in re.findall(r"<<([^\n<]*?)>>", response))


def is_json(response: str, arguments: Arguments) -> bool:
    """All of it is JSON, with or without a fence of three backticks around it."""
    bare = re.sub(r"(?i)^```(?:json)?|```$", "", response.strip()).strip()
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True


def is_constrained(response: str, arguments: Arguments) -> bool:
    """One of the three allowed answers is in it."""
    return any(answer in response for answer in _FIXED_ANSWERS)


def has_no_comma(response: str, arguments: Arguments) -> bool:
    """There is no comma."""
    return "," not in response
