"""The keys that Gym stamps on rows, and the names of the files beside an output."""

from pathlib import Path
from typing import Final

TASK: Final = "_ng_task_index"
ROLLOUT: Final = "_ng_rollout_index"
AGENT: Final = "agent_ref"
PARAMS: Final = "responses_create_params"

MATERIALIZED: Final = "_materialized_inputs.jsonl"
FAILURES: Final = "_failures.jsonl"
METRICS: Final = "_aggregate_metrics.json"
PROFILE: Final = "_reward_profiling.jsonl"
AGENT_METRICS: Final = "_agent_metrics.json"
COMPANIONS: Final = (MATERIALIZED, FAILURES, PROFILE)
"""Files of rows that are no rollouts."""


def beside(output: Path, ending: str) -> Path:
    """`rollouts.jsonl` has `rollouts_failures.jsonl` beside it."""
    return output.with_name(output.stem + ending)
