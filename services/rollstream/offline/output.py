"""The output of a collection: all samples that ended, in the order of the tasks, in constant memory."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rollstream.offline.ended import EndedSample
from rollstream.offline.progress import Progress
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.rows.row import BadRow
from rollstream.rows.write import RowWriter
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice

Row = dict[str, Any]
ToColumns = Callable[[CollectTask, EndedSample, CollectSettings], Row | None]
"""The row of a sample; None: the output has none of it."""


def ended_of(progress: Progress, row: int) -> list[EndedSample]:
    """The samples of a row that ended, in their order."""
    return [EndedSample.of(row, *one) for one in progress.of_row(row)]


def output_rows(
    tasks: TaskSource, progress: Progress, settings: CollectSettings, to_columns: ToColumns
) -> Iterator[Row]:
    """The rows of the output; a bad row of the input has none."""
    for task in tasks:
        if not isinstance(task, BadRow):
            for ended in ended_of(progress, task.number):
                row = to_columns(task, ended, settings)
                if row is not None:
                    yield row


def rollout_columns(task: CollectTask, ended: EndedSample, settings: CollectSettings) -> Row:
    """The columns of `generate-rollouts`, and how the sample ended."""
    sampling = settings.sampling
    return {
        "prompt": task.asked,
        "response": ended.response,
        "sample_idx": ended.sample,
        "data_idx": task.number,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "status": ended.status,
        "failure": ended.failure,
        # An empty response with `length` is a model that was cut off while it thought.
        "finish_reason": ended.finish_reason,
        **_original(task),
    }


def scored_columns(task: CollectTask, ended: EndedSample, settings: CollectSettings) -> Row:
    """The same with what `collect` knows beyond it: rewards, tokens, time, and the turns of an agent as JSON text."""
    columns = rollout_columns(task, ended, settings)
    rewards: Row = {}
    if settings.environment:
        rewards = {"reward": ended.reward, "scoring_failure": ended.scoring_failure}
        rewards.update({f"reward_{name}": value for name, value in ended.components.items()})
    measured: Row = {"num_tokens": ended.num_tokens, "seconds": ended.seconds}
    if settings.agent.name != AgentChoice().name:
        measured["turns"] = json.dumps(ended.turns, ensure_ascii=False)
    return {**columns, **rewards, **measured}


def _original(task: CollectTask) -> Row:
    return {f"original_{name}": value for name, value in task.fields.items()}


def write_failures(
    writer: RowWriter, task: CollectTask | BadRow, samples: list[EndedSample], max_attempts: int
) -> None:
    """List what has no response, and what has no reward although it should. `terminal`: it is not asked again."""
    if isinstance(task, BadRow):
        found = _Failed("reading", FailureCode.BAD_PROMPT.value, task.why)
        writer.write({"data_idx": task.number, "sample_idx": None, "where": task.where, **found.columns(0, True)})
        return
    for ended in samples:
        place = {"data_idx": task.number, "sample_idx": ended.sample, "where": task.where, **task.stamps}
        is_terminal = ended.attempts >= max_attempts
        if ended.failure is not None:
            found = _Failed("generation", ended.failure, ended.message)
            writer.write({**place, **found.columns(ended.attempts, is_terminal)})
        if ended.scoring_failure is not None:
            found = _Failed("scoring", ended.scoring_failure, ended.scoring_message)
            writer.write({**place, **found.columns(ended.attempts, is_terminal)})


@dataclass(frozen=True, slots=True)
class _Failed:
    stage: str
    failure: str
    message: str | None

    def columns(self, attempts: int, is_terminal: bool) -> Row:
        said = {"stage": self.stage, "failure": self.failure, "message": self.message}
        return {**said, "attempts": attempts, "terminal": is_terminal}
