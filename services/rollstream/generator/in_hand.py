"""How much a generator takes before what it has is done: by default so many samples that its engine is always full.

Their length is no bound then: eight samples that may have 8,192 tokens each are as many as eight short ones, and what
an engine can hold of long ones it knows itself. A sample that has ended has no share any more, while the others of its
prompt run: of eight samples whose lengths vary, the longest takes several times as long as the mean.
"""

import math
from typing import Final

from rollstream.generator.handler import samples_of
from rollstream.generator.settings import GeneratorSettings
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import RolloutGenerated

AHEAD: Final = 1.5
"""Samples in hand for each that the engine runs: when one ends, the next is there."""

_MOST_PROMPTS: Final = 4096


class InHand:
    """Counts samples, or tokens where `max_tokens_in_flight` is set. `max_model_len`: the engine's, in tokens."""

    def __init__(self, settings: GeneratorSettings, max_model_len: int) -> None:
        tokens = settings.max_tokens_in_flight
        samples = math.ceil(AHEAD * settings.engine.samples_at_once)
        self._longest = None if tokens is None else max_model_len
        self.most = samples if tokens is None else tokens
        """From this sum of weights on no prompt is taken."""
        self.most_prompts = max(_MOST_PROMPTS, samples)
        """From so many prompts on no other is taken. Those count that weigh nothing, since they wait."""

    def weight(self, prompt: PromptSubmitted) -> int:
        """How many samples a prompt has, or how many tokens they can have together."""
        return len(samples_of(prompt)) * self._of_sample(prompt)

    def freed(self, sample: RolloutGenerated) -> int:
        """The part of its prompt's weight that ends with a sample."""
        return self._of_sample(sample.prompt)

    def _of_sample(self, prompt: PromptSubmitted) -> int:
        return 1 if self._longest is None else min(prompt.sampling.max_tokens, self._longest)
