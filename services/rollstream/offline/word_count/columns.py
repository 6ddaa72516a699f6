"""The rollouts of source document 000: the columns of its rows, and what its script prints. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollstream.offline.journal import EndedSample
from rollstream.offline.settings import CollectSettings
from rollstream.offline.statistics import RolloutsSummary, example_lines
from rollstream.offline.tasks import CollectTask
from rollstream.schemas.ids import group_id, rollout_id

_RUN: Final = "collect"


class RolloutColumns:
    """Makes the rows. `user_id` is who asked; the session is the rollout's id, the same after a resume.

    `rewards`: names of the environment's reward functions, each of which becomes a column `NAME_reward`.
    """

    def __init__(self, identity: str, *, user_id: str, rewards: Sequence[str]) -> None:
        self._identity = identity
        self._user_id = user_id
        self._rewards = tuple(rewards)

    def __call__(self, task: CollectTask, ended: EndedSample, settings: CollectSettings) -> dict[str, Any] | None:
        """The document's columns; None for a sample without a reward: its snippets add up the column."""
        if ended.reward is None:
            return None
        group = group_id(_RUN, f"{self._identity}/{task.number}", 0)
        return {
            "prompt": task.asked,
            "completion": [{"role": "assistant", "content": ended.response}],
            "reward": ended.reward,
            **{f"{name}_reward": ended.components.get(name) for name in self._rewards},
            "answer": task.reference_answer,
            "info": _info(task.metadata),
            "metadata": {"user_id": self._user_id, "session_id": rollout_id(group, ended.sample)},
        }


def _info(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says of the task; of `word_count` as in the document, the count as a number."""
    if "word_count" in metadata:
        return {"text": metadata.get("text"), "word_count": int(metadata["word_count"])}
    return dict(metadata)


def opening_lines(num_examples: int, where: str, model: str) -> list[str]:
    """What is printed before the first answer."""
    return [f"Generating {num_examples} rollouts via {where}", f"Calling model {model}..."]


def closing_lines(summary: RolloutsSummary, outputs: Sequence[Path]) -> list[str]:
    """What is printed at the end: where the rollouts are, the statistics, and one example."""
    places = " and ".join(str(path) for path in outputs)
    lines = [f"{summary.rewards.num} rollouts saved in: {places}", "", "Statistics:", *summary.rewards.lines()]
    if summary.example is not None:
        lines += ["", "Example rollout:", *example_lines(summary.example)]
    return lines
