r"""Spellings of numbers that math-verify does not read, as ones that it reads; and numerals of other bases.

Models and data sets write `½`, `x²`, `3e5` and `7\,000`. The library takes the first two for words, the third for
3·e·5 and the last for 7·0. Of `101_2` it drops the base, so that it would be `101_3` too.
"""

import re
import unicodedata
from decimal import Decimal
from typing import Final

Numeral = tuple[str, int]

_GROUP: Final = r"(?:\\[,;:! ]|\\thinspace|~|[ \u00a0\u2009\u202f])"
_GROUPED: Final = re.compile(rf"(?<![\w.,\\])[0-9]{{1,3}}(?:{_GROUP}[0-9]{{3}})+(?![\w,])", re.ASCII)
_SEPARATOR: Final = re.compile(_GROUP)
_SCIENTIFIC: Final = re.compile(
    r"(?<![\w.,])[0-9]{1,30}(?:\.[0-9]{1,30})?[eE][+-]?[0-9]{1,2}(?!\w)(?!\.[0-9])", re.ASCII
)
_FRACTION: Final = re.compile("((?<![0-9])[0-9]{1,30} ?)?([¼-¾⅐-⅞])")
_RAISED: Final = re.compile("[⁺⁻]?[⁰¹²³⁴-⁹ⁿ]+")
_LOWERED: Final = re.compile("[₀-₉]+")
_ROOT: Final = re.compile(r"√ ?([0-9]+|[A-Za-z])")
_BASED: Final = re.compile(
    r"(?<![\w}^.])\(?(-?)\(?([0-9][0-9A-Fa-f]{0,99}(?:\.[0-9A-Fa-f]{1,99})?)\)?"
    r"_(?:\{ ?([0-9]{1,2}) ?\}|([0-9]{1,2}))(?!\w)",
    re.ASCII,
)


def rewritten(text: str) -> str:
    """The text with the spellings above as plain numbers, fractions, exponents and roots."""
    # The minus sign of typography.
    text = text.replace("\N{MINUS SIGN}", "-")
    text = _RAISED.sub(lambda found: f"^{{{_plain(found.group())}}}", text)
    text = _LOWERED.sub(lambda found: f"_{{{_plain(found.group())}}}", text)
    text = _FRACTION.sub(_fraction, text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _GROUPED.sub(lambda found: _SEPARATOR.sub("", found.group()), text)
    return _SCIENTIFIC.sub(lambda found: f"{Decimal(found.group()):f}", text)


def numeral_of(text: str) -> Numeral | None:
    """Digits with their sign, and base, of a text that is nothing but a numeral, as `-101_2`; None if it is none."""
    found = _BASED.fullmatch(rewritten(text).strip())
    return None if found is None else _numeral(found)


def last_numeral(text: str) -> Numeral | None:
    """The same of the last numeral with a base within a text."""
    numerals = [numeral for found in _BASED.finditer(rewritten(text)) if (numeral := _numeral(found)) is not None]
    return numerals[-1] if numerals else None


def _numeral(found: re.Match[str]) -> Numeral | None:
    digits, base = found[2].lstrip("0").upper(), int(found[3] or found[4])
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    # `3a_1` is no numeral but three times a variable.
    is_one = all(int(digit, 16) < base for digit in digits.replace(".", ""))
    return (f"{found[1]}{digits or '0'}", base) if is_one else None


def _fraction(found: re.Match[str]) -> str:
    above, _, below = _plain(found[2]).partition("\N{FRACTION SLASH}")
    whole = found[1]
    return f"({whole.strip()}+{above}/{below})" if whole else rf"\frac{{{above}}}{{{below}}}"


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
