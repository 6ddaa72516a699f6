"""What the groups of one of a step are compared with: the others of their environment. Pure.

A group of one is admitted without an advantage, since it has nobody to be compared with. In a step its advantage is its
reward - the mean of the step's other groups of one of its environment (`advantages_of_ones`). Truncated ones count in
that mean, and train no token. Where all rewards are the same, or all that differ are truncated, nothing is learned from
them, as from a group without spread.
"""

from collections.abc import Sequence
from dataclasses import replace

from rollstream.trainer.intake.admission import AdmissionRules, Admitted
from rollstream.training.learning.advantages import advantages_of_ones


def compared(batch: Sequence[Admitted], rules: AdmissionRules) -> list[Admitted]:
    """The groups of a step, those of one with their advantages; larger ones as they are."""
    if not rules.compares_ones:
        return list(batch)
    found = list(batch)
    places_of: dict[str, list[int]] = {}
    for place, admitted in enumerate(batch):
        if admitted.group.is_one:
            places_of.setdefault(admitted.group.environment, []).append(place)
    for places in places_of.values():
        rewards = [batch[place].training[0].reward for place in places]
        for place, advantage in zip(places, advantages_of_ones(rewards, rules.advantages).tolist(), strict=True):
            training = tuple(replace(sample, advantage=advantage) for sample in batch[place].training)
            found[place] = replace(batch[place], training=training)
    return found


def flat(batch: Sequence[Admitted]) -> list[Admitted]:
    """The groups of one of which nothing is learned in this step, since all of their environment have one reward."""
    teaching = {one.group.environment for one in batch if one.group.is_one and one.has_spread}
    return [one for one in batch if one.group.is_one and one.group.environment not in teaching]
