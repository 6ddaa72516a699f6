"""How many tokens an answer of the scripted engine has: the same for the same prompt and sample, log-normal over many.

A length is a median times a factor of the prompt times a factor of the sample. So the answers to one prompt resemble
each other in length, as hard problems take a model longer, and among the answers of many prompts some are very long.
"""

import hashlib
import math
from statistics import NormalDist

from rollstream.engines.settings import ScriptedSettings

_STANDARD = NormalDist()


def answer_tokens(settings: ScriptedSettings, *, prompt: str, sample: str) -> int | None:
    """Tokens of the answer, its end included, before any limit; None if the settings do not spread lengths.

    `sample` names one answer to one prompt.
    """
    if settings.answer_tokens_median is None:
        return None
    of_prompt = settings.answer_tokens_sigma_of_prompts * _normal(f"prompt/{prompt}")
    of_sample = settings.answer_tokens_sigma_of_samples * _normal(f"sample/{sample}")
    return max(1, round(settings.answer_tokens_median * math.exp(of_prompt + of_sample)))


def _normal(name: str) -> float:
    """A number of the standard normal distribution that `name` decides."""
    digest = hashlib.sha256(name.encode()).digest()
    # The half keeps it away from 0, where the inverse has no value; of 32 bits so that it is not rounded to 1.
    return _STANDARD.inv_cdf((int.from_bytes(digest[:4], "little") + 0.5) / 2**32)
