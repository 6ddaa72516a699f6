"""What SFT imitates, and what RL asks: rows of a data set, or tasks of an environment."""

import logging
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from rollstream.engines.model_directory import longest_sequence
from rollstream.engines.tokenizer import ChatTokenizer, as_chat
from rollstream.environments.protocol import Environment, Task
from rollstream.rows.conversation import REFERENCE, messages_of, tools_in, tools_of
from rollstream.rows.row import ReadRow
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.training.datasets.sft import load_sft_dataset, opened_dataset
from rollstream.training.pipeline.settings import RlTable, SftTable
from rollstream.training.types import Prompt, Sample

_LOG = logging.getLogger(__name__)


def demonstrations(table: SftTable, environment: Environment | None, model_path: Path) -> list[Sample]:
    """The samples to imitate; raises `ConfigurationError` if there are none."""
    longest = table.max_length or longest_sequence(model_path)
    limits: dict[str, Any] = {"tokenizer": model_path, "max_samples": table.max_samples, "max_length": longest}
    if environment is None:
        return load_sft_dataset(table.dataset or "", split=table.split, subset=table.subset, **limits)
    tasks = islice(environment.tasks("train", table.seed), table.max_samples)
    rows = [{**_asked(task), "completion": task.demonstration} for task in tasks if task.demonstration is not None]
    if not rows:
        raise ConfigurationError(
            f"environment {environment.name!r} has no demonstrations to learn from: name a dataset in [sft]"
        )
    return load_sft_dataset(rows, **limits)


def prompts(table: RlTable, environment: Environment, model_path: Path) -> list[Prompt]:
    """The prompts of an epoch as rows; those that can't be asked are left out, and how many is logged.

    Raises `ConfigurationError` if there are none.
    """
    chat = ChatTokenizer(model_path)
    longest = min(table.engine.max_model_len or MAX_SAMPLE_TOKENS, longest_sequence(model_path))
    found: list[Prompt] = []
    left_out: Counter[str] = Counter()
    for row in _rows(table, environment):
        if len(found) == table.num_prompts:
            break
        try:
            found.append(_askable(row, chat, longest))
        except UnusableRowError as error:
            left_out[error.reason] += 1
    reasons = ", ".join(f"{number} x {reason}" for reason, number in left_out.most_common())
    name = table.dataset or table.environment
    if not found:
        raise ConfigurationError(f"{name} has no prompt to ask ({reasons}): name another one")
    if left_out:
        _LOG.warning("%s: %d prompts, left out: %s", name, len(found), reasons)
    return found


def _rows(table: RlTable, environment: Environment) -> Iterable[Any]:
    if table.dataset is not None:
        return opened_dataset(table.dataset, table.split, table.subset)
    # There may be no end of them.
    return map(_row, islice(environment.tasks("train", table.seed), table.num_prompts))


def _askable(row: Any, chat: ChatTokenizer, longest: int) -> Prompt:
    """The row, if the model can be asked it and has room for an answer; raises `UnusableRowError`."""
    fields = row.fields if isinstance(row, ReadRow) else row
    if not isinstance(fields, dict):
        raise UnusableRowError("it can't be read")
    messages, tools = messages_of(fields), tools_of(tools_in(fields))
    try:
        num_tokens = len(chat.tokenize(messages, tools))
    except ValueError as error:
        raise UnusableRowError("the chat template does not take it") from error
    if num_tokens >= longest:
        raise UnusableRowError(f"it leaves no room in {longest} tokens")
    return fields


def _asked(task: Task) -> dict[str, Any]:
    return {"prompt": [as_chat(message) for message in task.messages]}


def _row(task: Task) -> Prompt:
    reference = {} if task.reference_answer is None else {REFERENCE: task.reference_answer}
    return {**_asked(task), **reference, "metadata": task.metadata}
