r"""Whether an answer is mathematically what the reference answer says, decided by the library math-verify.

The library's own time limits are off: they use SIGALRM, which works in a main thread only and ends in an exception that
`except Exception` lets pass. Whoever scores does it in a process that is killed at a deadline.
"""

import logging
import re
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from rollstream.environments.rewards.extraction import last_boxed
from rollstream.environments.rewards.notation import last_numeral, numeral_of, rewritten
from rollstream.schemas.errors import ConfigurationError, RewardError

MAX_CHARACTERS: Final = 2000
"""Of an answer, and of a reference. The library's patterns take time with the square of the length."""
_DELIMITED: Final = re.compile(r"(?s)\$\$?([^$]*)\$\$?|\\\(((?:(?!\\\().)*)\\\)|\\\[((?:(?!\\\[).)*)\\\]")


def load_math_verify() -> None:
    """Import the library and parse once: a first sample's deadline is no place for it.

    It takes some seconds, and 6 to 18 where the files of antlr and sympy are not in memory yet. What bounds it is
    `load_deadline_seconds` of the scorer, elsewhere `PoolBounds.load_seconds`. Raises `ConfigurationError` if it is not
    installed.
    """
    try:
        library = _library()
    except ImportError as error:
        raise ConfigurationError(
            f"comparing mathematical answers needs math-verify, which can't be imported ({error}): "
            "install rollstream[rewards]"
        ) from error
    # It warns that there is no time limit; there is one, see above.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    library.parse(r"\boxed{\frac{1}{2}}", parsing_timeout=None)


def is_equivalent(completion: str, reference: str) -> bool:
    r"""Whether the last answer of a completion equals the reference. An answer that can't be parsed does not.

    The answer is what the last box holds, and nothing beside it, so that two boxes are no two guesses. Without a box
    the library looks for it in the last `MAX_CHARACTERS` characters. Numerals that both have a base, as `101_2`, must
    be the same: equal values in different bases are often the question itself. Raises `RewardError` if the reference
    answer can't be parsed: then nothing is known about the answer.
    """
    gold = _parsed(rf"\boxed{{{bare(reference)}}}") if len(reference) <= MAX_CHARACTERS else []
    if not gold:
        raise RewardError(
            f"the reference answer {reference[:200]!r} is no mathematical expression of up to {MAX_CHARACTERS} "
            "characters: correct the row"
        )
    boxed = last_boxed(completion)
    if boxed is not None and len(boxed) > MAX_CHARACTERS:
        return False
    wanted = numeral_of(bare(reference))
    numeral = last_numeral(completion[-MAX_CHARACTERS:]) if boxed is None else numeral_of(bare(boxed))
    if numeral is not None and wanted is not None:
        return numeral == wanted
    found = _parsed(completion[-MAX_CHARACTERS:] if boxed is None else rf"\boxed{{{boxed}}}")
    return bool(_library().verify(gold, found, timeout_seconds=None))


def bare(reference: str) -> str:
    r"""A reference answer without the `$…$`, `\(…\)` or `\[…\]` around all of it, or the box that it has."""
    text = reference.strip()
    outer = _DELIMITED.fullmatch(text)
    if outer:
        text = next(inner for inner in outer.groups() if inner is not None).strip()
    boxed = last_boxed(text)
    return boxed if boxed is not None and text == rf"\boxed{{{boxed}}}" else text


def _parsed(text: str) -> list[Any]:
    return list(_library().parse(rewritten(text), parsing_timeout=None))


def _library() -> ModuleType:
    return import_module("math_verify")
