"""The environment variables of a process that runs code of others, such as reward functions: none holds a secret.

What a stage is told by its own environment (passwords of brokers, stores and services) is none of their business. So
only variables of these names are passed on. What such code needs beside them is an option of the environment that the
settings declare.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

from rollstream.process.masking import SECRETS

_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV"
    r"|PYTHON\w+|XDG_\w+|(OMP|MKL|KMP|OPENBLAS|NUMEXPR)_\w+|TOKENIZERS_PARALLELISM|CUDA_VISIBLE_DEVICES"
    r"|HF_(HOME|HUB_CACHE|DATASETS_CACHE|HUB_OFFLINE|DATASETS_OFFLINE)|NLTK_DATA|MPLBACKEND"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(http|https|no|all)_proxy|(HTTP|HTTPS|NO|ALL)_PROXY"
)


def harmless_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those to pass on. A value that holds a secret all the same, such as the password of a proxy, is left out."""
    return {name: value for name, value in variables.items() if _PASSED.fullmatch(name) and _is_plain(value)}


def _is_plain(value: str) -> bool:
    return SECRETS.masked(value) == value
