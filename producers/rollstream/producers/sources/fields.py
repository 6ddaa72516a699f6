"""Makes a prompt's row from the fields of a file's row, or says what is wrong with them. Pure.

What it says is read as everywhere (`rows/conversation.py`). `id` names it, else its number does.
"""

from typing import Any, Final

from rollstream.producers.sources.protocol import PromptRow
from rollstream.rows.conversation import CARRIED, messages_of, metadata_of, reference_of, tools_in, tools_of
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.schemas.prompt import more_than_a_record_holds
from rollstream.schemas.values import text_of

_ID: Final = "id"
_OWN: Final = CARRIED | {_ID}


def fields_of(read: ReadRow | BadRow) -> dict[str, Any]:
    """What was read; raises `ConfigurationError` that begins with where it is."""
    if isinstance(read, BadRow):
        raise ConfigurationError(f"{read.where}: {read.why}")
    return read.fields


def row_from(read: ReadRow | BadRow, *, dataset: str) -> PromptRow:
    """The row of what was read; raises `ConfigurationError` that begins with where it is."""
    fields = fields_of(read)
    try:
        prompt = _prompt(fields, dataset, read.number)
    except UnusableRowError as error:
        raise ConfigurationError(f"{read.where}: {error}") from error
    why = more_than_a_record_holds(messages=prompt.messages, tools=prompt.tools, metadata=prompt.metadata)
    if why is not None:
        raise ConfigurationError(f"{read.where}: {why}: take something out, or put it into one field")
    return prompt


def _prompt(fields: dict[str, Any], dataset: str, number: int) -> PromptRow:
    named = fields.get(_ID)
    return PromptRow(
        prompt_id=f"{dataset}/{text_of(number if named is None else named)}",
        row=number,
        own_id=None if named is None else text_of(named),
        messages=messages_of(fields),
        reference_answer=reference_of(fields),
        tools=tools_of(tools_in(fields)),
        metadata=metadata_of(fields, _OWN.__contains__),
    )
