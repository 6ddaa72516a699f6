"""The output of a collection: all samples that ended, in the order of the tasks, in constant memory."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rollstream.offline.ended import EndedSample
from rollstream.offline.progress import Progress
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.rows.row import BadRow
from rollstream.rows.write import RowWriter
from rollstream.schemas.failure import FailureCode

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
    """The same with what `collect` knows beyond it: rewards, tokens and time."""
    columns = rollout_columns(task, ended, settings)
    rewards: Row = {}
    if settings.environment:
        rewards = {"reward": ended.reward, "scoring_failure": ended.scoring_failure}
        rewards.update({f"reward_{name}": value for name, value in ended.components.items()})
    measured = {"num_tokens": ended.num_tokens, "seconds": ended.seconds}
    return {**columns, **rewards, **measured}


def _original(task: CollectTask) -> Row:
    return {f"original_{name}": value for name, value in task.fields.items()}


def write_failures(writer: RowWriter, task: CollectTask | BadRow, samples: list[EndedSample]) -> None:
    """List what has no response, and what has no reward although it should."""
    if isinstance(task, BadRow):
        writer.write(_failure(task, None, FailureCode.BAD_PROMPT.value, task.why, attempts=0, stage="reading"))
        return
    for ended in samples:
        if ended.failure is not None:
            writer.write(_failure(task, ended.sample, ended.failure, ended.message, ended.attempts, "generation"))
        if ended.scoring_failure is not None:
            writer.write(
                _failure(task, ended.sample, ended.scoring_failure, ended.scoring_message, ended.attempts, "scoring")
            )


def _failure(  # the columns of one line
    task: CollectTask | BadRow, sample: int | None, failure: str, message: str | None, attempts: int, stage: str
) -> Mapping[str, Any]:
    return {
        "data_idx": task.number,
        "sample_idx": sample,
        "where": task.where,
        "stage": stage,
        "failure": failure,
        "message": message,
        "attempts": attempts,
    }
