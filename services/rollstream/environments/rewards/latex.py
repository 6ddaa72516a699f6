r"""Two ways to write an answer so that equal ones are equal texts: of the MATH data set, and of Minerva.

Both only rewrite text; nothing is computed. The rules are those of the papers: Hendrycks et al. 2021 (MATH,
arXiv 2103.03874) and Lewkowycz et al. 2022 (Minerva, arXiv 2206.14858, appendix D.1).
"""

import re
from collections.abc import Sequence
from typing import Final

_Rule = tuple[re.Pattern[str], str]


def _rules(*pairs: tuple[str, str]) -> tuple[_Rule, ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


_MATH: Final = _rules(
    (r"\n|\\!", ""),
    (r"\\\\", r"\\"),
    (r"[td]frac", "frac"),
    (r"\\left|\\right", ""),
    (r"\^\\circ|\^\{\\circ\}", ""),
    (r"\\\$", ""),
    # A unit is the last thing of an answer.
    (r"(?s)\\text\{ .*$", ""),
    (r"\\{1,2}%", ""),
    (r"(^|[ {])\.", r"\g<1>0."),
    # "x = 5" is 5; a longer left side is a part of the answer.
    (r"(?s)^[^=]{0,2}=([^=]*)$", r"\1"),
    (r"\\sqrt([^{])", r"\\sqrt{\1}"),
    (r" ", ""),
    (r"\\frac([^{])([^{])", r"\\frac{\1}{\2}"),
    (r"\\frac([^{])\{", r"\\frac{\1}{"),
    (r"^0\.5$", r"\\frac{1}{2}"),
    (r"^(-?(?:0|[1-9][0-9]*))/(-?(?:0|[1-9][0-9]*))$", r"\\frac{\1}{\2}"),
)

_UNITS: Final = (
    "square|ways|integers|dollars|mph|inches|hours|km|units|sue|points|feet|minutes|digits|cents|degrees|cm|gm|pounds|"
    "meters|meals|edges|students|childrentickets|multiples"
)
_MINERVA: Final = _rules(
    (r"an ", ""),
    (r"a ", ""),
    (r"\.\$", "$"),
    (r"\\\$|\\ | ", ""),
    (r"mbox", "text"),
    (r",?\\text\{and\}", ","),
    (r"\\text\{m\}", r"\\text{}"),
    (_UNITS, ""),
    (r"\\l?dots|\\mathrm\{th\}|\^\\circ|\^\{\\circ\}|\\;|,\\!|\{,\}|\"", ""),
    (r"\\text\{(?:s|\.|\ns|\n)\}|\\text\{\}(?:\^[23])?", ""),
    # Only what is between dollar signs counts, if anything is.
    (r"(?s)^[^$]*\$([^$]*)\$.*$", r"\1"),
    (r"\\(?:text|textbf|overline)\{(.*?)\}", r"\1"),
    (r"\\boxed\{(.*)\}", r"\1"),
    (r"frac([^{])(.)", r"frac{\1}{\2}"),
    (r"sqrt([^{])", r"sqrt{\1}"),
    (r"\$", ""),
)


def math_form(answer: str) -> str:
    r"""An answer as the MATH data set compares it: `\dfrac12`, `\frac{1}{2}`, `1/2` and `0.5` become one text.

    Units, degrees, percent and currency signs go; commas stay, so `1,234` is not `1234`.
    """
    return _rewritten(answer, _MATH)


def minerva_form(answer: str) -> str:
    """An answer as Minerva compares it: what follows the last `=`, without units, dollar signs and text commands.

    The commas of a whole number go.
    """
    text = _rewritten(answer.rpartition("=")[2], _MINERVA).strip()
    digits = text.replace(",", "")
    return digits if digits.isascii() and digits.isdigit() else text


def _rewritten(text: str, rules: Sequence[_Rule]) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text
