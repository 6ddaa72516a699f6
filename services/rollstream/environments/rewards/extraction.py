r"""Finds the answer in a completion: inside `\boxed{…}`, or between tags. Each takes time with the length, no more."""

import re
from typing import Final

_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*")


def last_boxed(text: str) -> str | None:
    r"""What is inside the last `\boxed{…}` or `\fbox{…}`, with the braces that are nested in it.

    None if there is no box, or if the last one is not closed. `\boxed 5` without braces holds the rest up to the next
    `$` or line end.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    start = boxes[-1].end()
    if text.startswith("{", start):
        return _closed(text, start + 1)
    return re.split(r"[$\n]", text[start:], maxsplit=1)[0].strip() or None


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """What is in the last pair `<tag>…</tag>`; None if there is no pair."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, position = None, 0
    while (start := text.find(opening, position)) >= 0 and (end := text.find(closing, start)) >= 0:
        found, position = text[start + len(opening) : end], end + len(closing)
    return found


def _closed(text: str, start: int) -> str | None:
    depth = 1
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return None
