"""Advantages of single turns: the turns of a group that are the same step of the agent are compared with each other.

With `credit = "turn"` the advantage of a turn is its score minus the mean score of the group's turns of the same type
and number. A turn without a score does not train: neither 0 nor the others' mean takes its place.
"""

from collections.abc import Sequence

import numpy as np

from rollstream.schemas.scored import RolloutScored
from rollstream.training.learning.advantages import group_advantages
from rollstream.training.learning.settings import AdvantageSettings

_GROUP_MEAN = AdvantageSettings()


def turn_advantages(group: Sequence[RolloutScored], *, keeps_flat: bool = False) -> list[dict[int, float]]:
    """For each rollout of a group: the number of a turn → its advantage.

    A cell, the turns of one type and number, drops out if nothing is learned from it: all its scores are equal, or it
    is one turn alone. With `keeps_flat` it stays, at advantage 0. A score of a turn that does not exist is passed over.
    """
    cells: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for place, scored in enumerate(group):
        turns = scored.rollout.turns
        for score in scored.scoring.turn_scores:
            if score.reward is not None and score.turn < len(turns):
                turn = turns[score.turn]
                cells.setdefault((turn.turn_type, turn.turn_number), []).append((place, score.turn, score.reward))
    found: list[dict[int, float]] = [{} for _ in group]
    for cell in cells.values():
        advantages = group_advantages([reward for _, _, reward in cell], _GROUP_MEAN)
        if keeps_flat or np.any(advantages):
            for (place, number, _), advantage in zip(cell, advantages.tolist(), strict=True):
                found[place][number] = advantage
    return found
