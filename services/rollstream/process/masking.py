"""Takes secrets out of texts that others made, messages of libraries and of a user's code, and out of variables.

What our own errors say holds no secret by itself. `SECRETS` is the last guard, of every log line and of every error
text that leaves the process.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final
from urllib.parse import quote

from pydantic import SecretStr

from rollstream.process.settings.address import SecretUrl
from rollstream.schemas.addresses import secret_parts

_HIDDEN: Final = "***"
# A shorter one is no secret that could be found in a text, and may be part of any word or number.
_SHORT: Final = 4
# So much of a secret in a text is no accident.
_BEGINNING: Final = 12
# The guard looks into all lines: what is shorter would blot out words.
_SHORTEST_GUARDED: Final = 8
# Entries of tables of secrets that hold none. Lines that name them are needed to find a mistake.
_PLAIN_NAMES: Final = re.compile(
    r"(protocol|mechanisms?|username|location|algorithm|verification|endpoint\w*|region|account_name|bucket)$"
)
_SECRET_NAME: Final = re.compile(
    r"(?i)(password|passwd|passphrase|secret|credential|bearer|(^|[_.-])(auth|authorization|token)$"
    r"|(api|access|account|private|signing|auth|sas)[_.-]?key)"
)
# Of the environment's variables those that code of others needs, such as reward functions. What a stage is told by its
# own environment (passwords of brokers, stores and services) is none of their business.
_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV"
    r"|PYTHON\w+|XDG_\w+|(OMP|MKL|KMP|OPENBLAS|NUMEXPR)_\w+|TOKENIZERS_PARALLELISM|CUDA_VISIBLE_DEVICES"
    r"|HF_(HOME|HUB_CACHE|DATASETS_CACHE|HUB_OFFLINE|DATASETS_OFFLINE)|NLTK_DATA|MPLBACKEND"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(http|https|no|all)_proxy|(HTTP|HTTPS|NO|ALL)_PROXY"
)
_USER_AND_PASSWORD: Final = re.compile(r":/{1,2}[^\s/@\"\\]*:[^\s/\"\\]*@")


def without_values(values: Iterable[str], text: str) -> str:
    """`text` without these values, however `repr` may have written them, and without the beginning of one cut off."""
    forms = {form for value in values for form in (value, _quoted(value, "/"), _quoted(value)) if form}
    for value in sorted(forms, key=len, reverse=True):
        found = "".join(map(_as_written, re.findall(r"\\+|[^\\]", value, re.DOTALL)))
        text = re.sub(found if len(value) >= _SHORT else rf"(?<!\w){found}(?!\w)", _HIDDEN, text)
        while len(value) > _BEGINNING and (start := text.find(value[:_BEGINNING])) >= 0:
            text = f"{text[:start]}{_HIDDEN}{text[start + _num_common(text[start:], value) :]}"
    return text


def may_name_a_secret(name: str) -> bool:
    """Whether a setting of this name may hold a secret. The chart refuses the same names where its values are shown."""
    return _SECRET_NAME.search(name) is not None


def secrets_in(values: Any, name: str = "") -> Iterator[str]:
    """The secrets in settings, as `model_dump` gives them, but for entries whose names say that they are none."""
    if isinstance(values, Mapping):
        for below, value in values.items():
            yield from secrets_in(value, below)
    elif isinstance(values, SecretUrl):
        yield from secret_parts(values.get_secret_value())
    elif isinstance(values, SecretStr) and not _PLAIN_NAMES.search(name):
        yield values.get_secret_value()


class Secrets:
    """The secrets that a process knows. Thread-safe: every thread logs."""

    def __init__(self) -> None:
        self._written: tuple[str, ...] = ()

    def add(self, values: Iterable[str]) -> None:
        """Hide these from now on; of one with several lines, such as a key, each line."""
        lines = (line for value in values for line in value.splitlines() if not line.startswith("-----"))
        written = {form for line in lines if len(line) >= _SHORTEST_GUARDED for form in _forms(line)}
        # The longest first: one may hold another.
        self._written = tuple(sorted({*self._written, *written}, key=len, reverse=True))

    def masked(self, text: str) -> str:
        """`text` without them, and without user and password of any URL."""
        for form in self._written:
            text = text.replace(form, _HIDDEN)
        return _USER_AND_PASSWORD.sub(f"://{_HIDDEN}@", text)


SECRETS: Final = Secrets()
"""Those of this process; loading settings adds theirs."""


def harmless_variables() -> dict[str, str]:
    """The variables to pass on to a process that runs code of others. What else it needs is an option that it gets.

    The address of a proxy that holds a password is left out. No other value is looked at: an option of an environment
    counts as a secret, and may be a word that stands in PATH.
    """
    passed = ((name, value) for name, value in os.environ.items() if _PASSED.fullmatch(name))
    return {
        name: value for name, value in passed if not name.lower().endswith("_proxy") or SECRETS.masked(value) == value
    }


def _num_common(text: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def _forms(value: str) -> set[str]:
    """A secret as it is, as it stands in a URL and in what `repr` writes, and each of these in JSON."""
    written = {value, _quoted(value), repr(value)[1:-1]}
    return written | {json.dumps(one)[1:-1] for one in written}


def _quoted(value: str, safe: str = "") -> str:
    """As it stands in a URL. What a variable of the environment holds may be no UTF-8."""
    return quote(value, safe=safe, errors="replace")


def _as_written(part: str) -> str:
    """A pattern of a character, or of backslashes, as it is and in what `repr` makes of it, once or more often."""
    if part.startswith("\\"):
        return r"\\+"
    escape = repr(part)[1:-1]
    plain = rf"\\*{re.escape(part)}"
    return plain if escape == part else rf"(?:{plain}|\\+{re.escape(escape[1:])})"
