"""Demonstrations for SFT out of files, data sets of the hub, or rows in memory."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from rollstream.engines.tokenizer import as_chat
from rollstream.rows.conversation import Row, chat_of, demonstration_in, records_of, tools_in, tools_of
from rollstream.rows.hub import HubName, full_hub_name, is_hub_name
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from rollstream.schemas.errors import ConfigurationError, UnusableRowError
from rollstream.training.sft.demonstrations import Exchange, Texts, demonstrations_of
from rollstream.training.types import Sample

_LOG = logging.getLogger(__name__)
_FILES: Final = (".jsonl", ".parquet", ".json", ".csv")
Rows: TypeAlias = Iterable[Mapping[str, Any]]
# What of an answer is not in its text: a chat template decides how the model would have to write it.
_NOT_TEXT: Final = ("tool_calls", "reasoning", "reasoning_content")


def load_sft_dataset(
    name: str | Path | Rows,
    *,
    tokenizer: Any,
    split: str | None = None,
    subset: str | None = None,
    max_samples: int | None = None,
    max_length: int | None = None,
) -> list[Sample]:
    """Samples whose answers are imitated: loss mask 1 on the answer and the stop token after it, 0 on the prompt.

    `name`: a .jsonl or .parquet file, a directory of them or of `datasets.save_to_disk`, a data set on the hub
    (`openai/gsm8k`, `hf://OWNER/NAME@REVISION`), or rows such as a `datasets.Dataset`. All but .jsonl needs the extra
    `collect`. `rows/README.md` says which columns are read. Each assistant message of a chat is a sample, after all
    messages before it.
    `tokenizer`: one of transformers, or a model directory. What looks like a control token in a text is text.
    `split`: default train. `subset`: the hub's configuration. At most `max_samples`, the first ones. Samples of over
    `max_length` tokens and rows that can't be used are left out, and how many is logged.
    Raises `ConfigurationError` if the rows can't be read, or if no sample is left.
    """
    for option, value in (("max_samples", max_samples), ("max_length", max_length)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{option} is {value}: give at least 1, or None for no bound")
    source = opened_dataset(name, split, subset)
    left_out: Counter[str] = Counter()
    texts = _texts(tokenizer)
    found = (_samples(exchange, texts, max_length, left_out) for exchange in _exchanges(source, left_out))
    samples = list(islice(chain.from_iterable(found), max_samples))
    reasons = ", ".join(f"{number} x {reason}" for reason, number in left_out.most_common())
    shown = name if isinstance(name, str | Path) else type(name).__name__
    if not samples:
        raise ConfigurationError(
            f"{shown} has no sample to learn from ({reasons or 'no rows'}): rows need a prompt and a completion, "
            "messages, or a question and an answer"
        )
    if left_out:
        _LOG.warning("%s: %d samples, left out: %s", shown, len(samples), reasons)
    return samples


def opened_dataset(name: str | Path | Rows, split: str | None, subset: str | None) -> Rows | Iterable[Any]:
    """The rows that `load_sft_dataset` reads; those of files as `ReadRow` or `BadRow`."""
    if not isinstance(name, str | Path):
        if split is not None or subset is not None:
            raise ConfigurationError(f"split {split!r} and subset {subset!r} are of names; choose them from the rows")
        return name
    path = Path(name)
    if path.exists():
        if subset is not None:
            raise ConfigurationError(f"{path} is a file or directory, which has no subset {subset!r}: leave it out")
        if split is not None and (path / split).is_dir():
            return open_rows(path / split)
        if split not in (None, "train"):
            raise ConfigurationError(f"{path} has no split {split!r}: leave it out, or name the file of the split")
        return open_rows(path)
    if is_hub_name(path):
        if split is not None or subset is not None:
            raise ConfigurationError(f"{name}: write split and subset into the name, as in ?split=train&config=main")
        return open_rows(path)
    if path.suffix in _FILES or len(path.parts) > 2 or path.is_absolute():
        raise ConfigurationError(f"there is no file {path}: name one, or a data set on the hub, such as openai/gsm8k")
    repository = str(name) if "/" in str(name) else full_hub_name(str(name))
    return open_rows(Path(str(HubName(repository=repository, split=split or "train", config=subset))))


def _texts(tokenizer: Any) -> Texts:
    if isinstance(tokenizer, str | Path):
        return Texts(Path(tokenizer))
    with TemporaryDirectory() as scratch:
        # Under its own name, for messages.
        path = Path(scratch) / (Path(tokenizer.name_or_path).name or "tokenizer")
        tokenizer.save_pretrained(path)
        return Texts(path)


def _exchanges(source: Iterable[Any], left_out: "Counter[str]") -> Iterator[Exchange]:
    for row in source:
        fields = row.fields if isinstance(row, ReadRow) else row
        try:
            if not isinstance(fields, Mapping):
                raise UnusableRowError("it can't be read")
            yield _exchange(fields)
        except UnusableRowError as error:
            left_out[error.reason] += 1


def _exchange(row: Row) -> Exchange:
    asked, answered = demonstration_in(row)
    if not asked or answered is None:
        raise UnusableRowError("nothing is asked, or nothing answered")
    answer = chat_of(answered, role="assistant")
    if not any(message["role"] == "assistant" for message in answer):
        raise UnusableRowError("it has no answer of an assistant")
    if any(message.get(part) for message in answer for part in _NOT_TEXT):
        raise UnusableRowError("its answer holds tool calls or reasoning apart from its text")
    return records_of(chat_of(asked, role="user")), records_of(answer), tools_of(tools_in(row))


def _samples(exchange: Exchange, texts: Texts, max_length: int | None, left_out: "Counter[str]") -> Iterator[Sample]:
    prompt, answer, _ = exchange
    for place, one in demonstrations_of(exchange, texts, max_length, left_out):
        yield Sample(
            prompt=[as_chat(message) for message in (*prompt, *answer[:place])],
            response=answer[place].content,
            tokens=[*one.prompt_token_ids.tolist(), *one.token_ids.tolist()],
            loss_mask=[0.0] * len(one.prompt_token_ids) + [1.0] * len(one.token_ids),
        )
