r"""Finds the answer in a completion: inside `\boxed{…}`, or between tags. Each takes time with the length, no more."""

import re
from collections.abc import Iterator
from typing import Final

_BOX: Final = re.compile(r"\\boxed\s*")
_FRAME: Final = re.compile(r"\\fbox\s*")


def last_boxed(text: str) -> str | None:
    r"""What is inside the last `\boxed{…}` or `\fbox{…}`, with the braces that are nested in it.

    None if there is no box, or if the last one is not closed. `\boxed 5` without braces holds the rest up to the next
    `$` or line end. An `\fbox` counts only where there is no `\boxed`.
    """
    boxes = list(_BOX.finditer(text)) or list(_FRAME.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text.startswith("{", start):
        return _closed(text, start + 1)
    return re.split(r"[$\n]", text[start:], maxsplit=1)[0].strip() or None


def last_boxed_in_math(text: str) -> str | None:
    r"""The same by the letter of the MATH data set's program: None for an `\fbox`, and for a space before the brace.

    `\boxed 5` holds the rest up to the next `$`, and counts before every box with braces.
    """
    if r"\boxed " in text:
        return text.rpartition(r"\boxed ")[2].partition("$")[0]
    start = text.rfind(r"\boxed") + len(r"\boxed")
    return _closed(text, start + 1) if r"\boxed" in text and text.startswith("{", start) else None


def tagged(text: str, tag: str = "answer") -> Iterator[str]:
    """What is in each pair `<tag>…</tag>`, in their order. A pair begins at the first opening tag after the last pair.

    Searched without a pattern: one with `\\s*` beside `.*?` takes time with the cube of the length.
    """
    opening, closing, position = f"<{tag}>", f"</{tag}>", 0
    while (start := text.find(opening, position)) >= 0 and (end := text.find(closing, start)) >= 0:
        yield text[start + len(opening) : end]
        position = end + len(closing)


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """What is in the last pair `<tag>…</tag>`; None if there is no pair."""
    found = None
    for found in tagged(text, tag):  # noqa: B007 (the last one is what is wanted)
        pass
    return found


def _closed(text: str, start: int) -> str | None:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return None
