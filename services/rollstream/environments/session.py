"""The environment `session`: the reward is what the session of a sample's tools said before it was closed.

A tool server that keeps state, such as a resources server of NeMo Gym, can score a sample only while its session is
open. The agent therefore asks it (`POST /verify`) at the sample's end, and its whole answer becomes the observation
`verify`. Here its `reward` is passed on, and `reward_components` are the components.

Without a verdict the sample is unresolved, never a reward of 0. So it is where the server says that its reward means
nothing: by `mask_sample`, or by `failure_kind` as newer servers of NeMo Gym do.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rollstream.environments.protocol import no_tasks
from rollstream.environments.rubric import RewardInput, finite
from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Sampling

VERIFY: Final = "verify"
"""The observation that holds the session's verdict, JSON text."""


class SessionRubric:
    """Passes the session's verdict on."""

    def score(self, sample: RewardInput) -> tuple[float, dict[str, float]]:
        """The session's reward and its components; raises `RewardError` if it gave none, or one that means nothing."""
        said = _verdict(sample.observations)
        why = said.get("failure_kind") or ("mask_sample" if said.get("mask_sample") else None)
        if why:
            raise RewardError(f"the session says that its reward means nothing: {str(why)[:200]}")
        components = said.get("reward_components") or {}
        if not isinstance(components, dict):
            raise RewardError(f"the session's reward_components are a {type(components).__name__}, not an object")
        reward = finite(said.get("reward"), "the session's reward")
        return reward, {name: finite(value, f"component {name!r}") for name, value in components.items()}


class SessionVerdict:
    """It has no tasks of its own, and no options."""

    name = "session"
    rubric = SessionRubric()
    sampling = Sampling(temperature=1.0, max_tokens=1024)
    tasks = no_tasks


def _verdict(observations: Mapping[str, str]) -> dict[str, Any]:
    if VERIFY not in observations:
        raise RewardError(
            "the sample has no verdict of a session: its agent needs tools whose server has /verify, see [tools.NAME]"
        )
    try:
        said = json.loads(observations[VERIFY])
    except (ValueError, RecursionError) as error:
        raise RewardError(f"the session's verdict is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise RewardError(f"the session's verdict is a {type(said).__name__}, not an object")
    return said
