"""The rows of `ng_collect_rollouts`: what the agent's server answered, Gym's stamps, and the source document's keys.

`output`: the response's items as chat messages. `success`: whether the reward reaches the threshold; null without a
reward. `metadata`: how many messages of the assistant and calls, the reward, tokens, seconds, and what is not known
(`gaps`). A key that the verifier gives itself stays as it is; a `metadata` of its own keeps its keys beside ours.
"""

from collections.abc import Mapping
from typing import Any

from rollstream.gym.transcript import messages_of, num_tool_calls, usage_of
from rollstream.offline.ended import EndedSample
from rollstream.offline.output import Row
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask


def rollout_row(task: CollectTask, ended: EndedSample, settings: CollectSettings) -> Row | None:
    """The row of a rollout; None for one that has no answer, which is listed among the failures."""
    if not ended.is_completed:
        return None
    answer, asked = ended.answer, task.fields
    threshold = float(settings.described["success_threshold"])
    messages = messages_of(answer["response"]["output"])
    success = None if ended.reward is None else ended.reward >= threshold
    document = {"output": messages, "success": success}
    # What a verifier leaves out of the row comes back, so that the rollout can be scored again.
    row = {**asked, **document, **answer, **task.stamps, "reward": ended.reward}
    return {**row, "metadata": _metadata(row, messages, ended)}


def _metadata(row: Mapping[str, Any], messages: list[dict[str, Any]], ended: EndedSample) -> Any:
    own = row.get("metadata", {})
    if not isinstance(own, dict):
        return own
    usage = usage_of(row["response"])
    gaps = [f"no_{name}" for name, value in usage.items() if value is None]
    if not row.get("ng_model_call_capture"):
        gaps.append("no_model_call_capture")
    found = {
        "reasoning_steps": sum(message["role"] == "assistant" for message in messages),
        "tool_calls_made": num_tool_calls(row["response"]["output"]),
        "verification_score": ended.reward,
        **usage,
        "seconds": ended.seconds,
        "gaps": gaps,
    }
    # Rollouts that are verified again have ours of the time before.
    theirs = {name: value for name, value in own.items() if name not in found} if found.keys() <= own.keys() else own
    return {**found, **theirs}
