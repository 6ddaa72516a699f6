"""The problems: data sets by name, files, or the hub's, one after the other, each row a message of the user."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from rollstream.offline.tasks import CollectTask, TaskSource, task_of
from rollstream.process.settings.declared import imported
from rollstream.rc_actor.built_in import MATH_DATASETS
from rollstream.rc_actor.own_rows import LoadedRows
from rollstream.rc_actor.settings import DatasetSettings, RCSettings
from rollstream.rc_actor.texts import BARE_PROBLEM, DATASET
from rollstream.rows.hub import HubName
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow, RowSource
from rollstream.schemas.errors import ConfigurationError

_PACKAGED: Final = Path(__file__).parent / "packaged" / "datasets"
_COLUMNS: Final = ("task", "problem", "question", "prompt")
"""Where the problem stands: the first of these that is a text."""
_JOINED: Final = " + "

Loader = Callable[[list[Any]], Iterable[Mapping[str, Any]]]


def training_problems(settings: RCSettings, begun_with: str = "") -> TaskSource:
    """The training problems, those of `train_subset`. `begun_with`: what `identity` was when the output was begun.

    A data set of the hub is then read at the commit of that time. Raises `ConfigurationError` if there are none.
    """
    if not settings.train_dataset_names:
        raise ConfigurationError("train_dataset_names is empty: name a data set, e.g. [problems.jsonl]")
    return _tasks(settings, settings.train_dataset_names, begun_with, is_test=False)


def evaluation_problems(settings: RCSettings, begun_with: str = "") -> TaskSource | None:
    """The test problems, each once; None if no data set is named."""
    names = settings.test_dataset_names
    return _tasks(settings, names, begun_with, is_test=True) if names else None


def _tasks(settings: RCSettings, names: Sequence[DatasetSettings], begun_with: str, *, is_test: bool) -> TaskSource:
    own = settings.dataset_loader != MATH_DATASETS
    parts = [_loaded(settings, names)] if own else [_opened(settings, one, begun_with) for one in names]
    subset = None if is_test or settings.train_subset is None else settings.train_subset
    begin, end = (0, None) if subset is None else (subset.begin, subset.end)
    return ProblemTasks(parts, settings, begin, end)


@dataclass(frozen=True, slots=True)
class _Part:
    """One data set: its name in texts and figures, and its rows."""

    name: str
    rows: RowSource


class ProblemTasks:
    """The problems of some data sets, numbered through. See `TaskSource`."""

    def __init__(self, parts: Sequence[_Part], settings: RCSettings, begin: int, end: int | None) -> None:
        """`begin`, `end`: of all rows, those from `begin` to before `end`."""
        self._parts = tuple(parts)
        self._settings = settings
        self._begin, self._end = begin, end
        self.name = ", ".join(part.name for part in parts)

    @property
    def num_rows(self) -> int | None:
        counts = [part.rows.num_rows for part in self._parts]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return None
        return max(0, min(sum(known), self._end if self._end is not None else sum(known)) - self._begin)

    def identity(self) -> str:
        """Those of the data sets, joined, with the rows that are taken."""
        rows = f"{_JOINED}rows {self._begin} to {self._end}" if self._begin or self._end else ""
        return _JOINED.join(part.rows.identity() for part in self._parts) + rows

    def __iter__(self) -> Iterator[CollectTask | BadRow]:
        named = ((part.name, row) for part in self._parts for row in part.rows)
        for number, (name, row) in enumerate(islice(named, self._begin, self._end)):
            found = replace(row, number=number)
            yield found if isinstance(found, BadRow) else self._task(found, name)

    def starting_at(self, number: int) -> Iterator[CollectTask | BadRow]:
        """All: files are read from their start."""
        return iter(self)

    def _task(self, row: ReadRow, name: str) -> CollectTask | BadRow:
        columns = [column for column in _COLUMNS if isinstance(row.fields.get(column), str)]
        if not columns:
            why = f"it has no text in {', '.join(_COLUMNS)}: give the column of the problem one of these names"
            return BadRow(row.number, row.where, why)
        actor, column = self._settings.actor, columns[0]
        problem = row.fields[column]
        user = {"role": "user", "content": actor.task(problem)}
        system = [{"role": "system", "content": actor.system_prompt}] if actor.system_prompt else []
        others = {key: value for key, value in row.fields.items() if key != column}
        named = {DATASET: str(others.pop("dataset", None) or name)}
        if user["content"] != problem:
            named[BARE_PROBLEM] = problem
        return task_of(replace(row, fields={**others, **named, column: [*system, user]}), prompt_key=column)


def _opened(settings: RCSettings, one: DatasetSettings, begun_with: str) -> _Part:
    if one.hub_id is not None:
        wanted = HubName(repository=one.hub_id, revision=one.revision, split=one.split, config=one.config)
        return _Part(one.hub_id, open_rows(Path(str(wanted)), _begun(wanted, begun_with)))
    assert one.name is not None
    path = settings.datasets.get(one.name) or _packaged(one.name) or Path(one.name)
    if path == Path(one.name) and not path.exists() and not one.name.startswith("hf:"):
        known = ", ".join(sorted({*settings.datasets, *packaged_datasets()}))
        raise ConfigurationError(
            f"{one.name!r} is neither a file here nor a named data set ({known}): write "
            f"datasets.{one.name}=FILE.jsonl, or correct the name"
        )
    return _Part(one.name, open_rows(path, begun_with if one.name.startswith("hf:") else ""))


def packaged_datasets() -> list[str]:
    """Names of the data sets of this package."""
    return sorted(path.stem for path in _PACKAGED.glob("*.jsonl"))


def _packaged(name: str) -> Path | None:
    return _PACKAGED / f"{name}.jsonl" if name in packaged_datasets() and not Path(name).exists() else None


def _begun(wanted: HubName, begun_with: str) -> str:
    """Of a joined identity the part of this data set; "" if it has none."""
    for part in begun_with.split(_JOINED):
        if part.startswith("hf://") and replace(HubName.read(part), revision=wanted.revision) == wanted:
            return part
    return ""


def _loaded(settings: RCSettings, names: Sequence[DatasetSettings]) -> _Part:
    loader: Loader = imported("dataset_loader", settings.dataset_loader)
    asked = [one.name if one.name is not None else one.model_dump(exclude_none=True) for one in names]
    return _Part(settings.dataset_loader, LoadedRows(settings.dataset_loader, lambda: loader(asked)))
