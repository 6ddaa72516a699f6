"""What a step's whole batch gets before it trains: logprobs of the reference model, if there is one, and advantages."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollstream.training.learning.advantages import with_advantages
from rollstream.training.learning.learner import Learner
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.samples import TrainingSample


def prepared(learner: Learner, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The samples of a whole step with what the learner's settings ask for; see `with_advantages` for errors."""
    return with_advantages(with_reference_logprobs(learner, samples), learner.settings)


def with_reference_logprobs(learner: Learner, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The samples with `reference_logprobs`, one forward pass; as they are if the learner has no reference model."""
    found = list(samples)
    if learner.reference is None or not any(sample.num_trained_tokens for sample in samples):
        return found
    packed = learner.reference.pack(Minibatch.of(samples, "dapo"))
    for batch, logprobs in zip(packed, learner.reference.logprobs(packed), strict=True):
        ends = np.cumsum([samples[member].num_trained_tokens for member in batch.members])
        for member, values in zip(batch.members, np.split(logprobs.cpu().numpy(), ends[:-1]), strict=True):
            sample = samples[member]
            reference = np.zeros(len(sample.token_ids), dtype=values.dtype)
            reference[sample.loss_mask] = values
            found[member] = replace(sample, reference_logprobs=reference)
    return found
