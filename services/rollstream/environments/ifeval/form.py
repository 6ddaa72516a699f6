"""Instructions about the form of a response: its parts, its beginning and its end, marks, fixed answers, JSON."""

import json
import re
from typing import Final

from rollstream.environments.ifeval.arguments import Arguments, holds, number, text

_ABBREVIATED: Final = re.compile(
    r"mr|mrs|ms|dr|prof|st|sr|jr|vs|etc|inc|ltd|co|e\.g|i\.e|u\.s|u\.k|a\.m|p\.m|fig|approx"
)
_END: Final = re.compile(r"""(?<![.!?…])[.!?…]+["'”’)\]*]*(?=\s|$)|[。！？]""")  # noqa: RUF001 (Chinese full stops)
_LONGEST_ABBREVIATION: Final = 8
_FIXED_ANSWERS: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def number_of_sentences(response: str, arguments: Arguments) -> bool:
    """Enough sentences, or few enough."""
    return holds(count_sentences(response), arguments, "num_sentences")


def count_sentences(response: str) -> int:
    """How many sentences a text has: it is divided where a word ends in `.`, `!` or `?`.

    Not divided: after common abbreviations ("Dr.", "e.g.") and capital letters ("J. Smith"), nor within numbers. A rest
    without a full stop is a sentence too. The original asks NLTK's trained model, so that counts may differ by one here
    and there.
    """
    count, begun, last = 0, 0, len(response.rstrip())
    for end in _END.finditer(response):
        if end.end() < last and end.group() == "." and _is_abbreviated(response, end.start()):
            continue
        count += bool(re.search(r"\w", response[begun : end.end()]))
        begun = end.end()
    return count + bool(re.search(r"\w", response[begun:]))


def _is_abbreviated(response: str, stop: int) -> bool:
    """Whether the word before the full stop at `stop` is an abbreviation or one capital letter, but not "I"."""
    before = response[max(0, stop - _LONGEST_ABBREVIATION - 1) : stop].split()
    word = before[-1].lstrip("([\"'*") if before else ""
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return is_initial or _ABBREVIATED.fullmatch(word.lower()) is not None


def number_of_paragraphs(response: str, arguments: Arguments) -> bool:
    """Exactly so many parts with `***` between them; an empty part is allowed at the beginning and end only."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", response)]
    return all(parts[1:-1]) and sum(map(bool, parts)) == number(arguments, "num_paragraphs")


def has_two_responses(response: str, arguments: Arguments) -> bool:
    """Two different parts with six asterisks between them; an empty part is allowed at the beginning and end only."""
    parts = [part.strip() for part in response.split("******")]
    filled = [part for part in parts if part]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def number_of_sections(response: str, arguments: Arguments) -> bool:
    """At least so many times the name of a section with a number, e.g. "SECTION 1"."""
    name = re.escape(text(arguments, "section_spliter").strip())
    return len(re.findall(rf"{name}\s?\d+", response)) >= number(arguments, "num_sections")


def number_of_bullets(response: str, arguments: Arguments) -> bool:
    """Exactly so many lines that begin with `*` or `-`; lines that begin with `**` are no bullets."""
    bullets = re.findall(r"(?m)^[ \t]*(?:\*(?!\*)|-).+$", response)
    return len(bullets) == number(arguments, "num_bullets")


def has_postscript(response: str, arguments: Arguments) -> bool:
    """The marker is there, in upper or lower case; for `P.S.` and `P.P.S` spaces between its letters don't matter."""
    marker = text(arguments, "postscript_marker").strip()
    spaced = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}.get(marker, re.escape(marker))
    return re.search(spaced, response, re.IGNORECASE) is not None


def ends_with(response: str, arguments: Arguments) -> bool:
    """The phrase is the end, in upper or lower case, also before a closing quotation mark."""
    return response.strip().strip('"').lower().endswith(text(arguments, "end_phrase").strip().lower())


def is_quoted(response: str, arguments: Arguments) -> bool:
    """Double quotation marks are its first and last characters."""
    stripped = response.strip()
    return len(stripped) > 1 and stripped[0] == stripped[-1] == '"'


def repeats_prompt(response: str, arguments: Arguments) -> bool:
    """It begins with the prompt, in upper or lower case."""
    return response.strip().lower().startswith(text(arguments, "prompt_to_repeat").strip().lower())


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
    return "," not in response
