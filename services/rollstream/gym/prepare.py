"""`ng_prepare_data`: checks the datasets of agents, measures them, and collates the rows of each type in one file.

The metrics are Gym's: numbers of examples, tools, words and turns, temperatures, and every other column's numbers or
different texts. They lie beside each dataset as `NAME_metrics.json`; one that is there and differs is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollstream.gym.addresses import AGENTS
from rollstream.gym.aggregate import middle
from rollstream.gym.names import AGENT, PARAMS, beside
from rollstream.gym.options import PrepareOptions
from rollstream.gym.packaged_files import packaged_or_own
from rollstream.gym.servers.config import joined
from rollstream.gym.servers.directives import made
from rollstream.offline.statistics import RewardStatistics
from rollstream.process.database import Database
from rollstream.process.files import replace_text
from rollstream.process.terminal import Say
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError

_TYPES: Final = {"train_preparation": ("train", "validation"), "example_validation": ("example",)}
_WORDS: Final = "Json-dumped number of words (proxy for token count)"
_FIXED: Final = ("Number of tools", _WORDS, "Number of turns", "Temperature")
_MAX_COLUMNS: Final = 1000
_SHOWN: Final = 10
_TABLES: Final = """
CREATE TABLE numbers (name TEXT, value REAL);
CREATE TABLE texts (name TEXT, value TEXT, count INTEGER, PRIMARY KEY (name, value)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset of an agent. `said`: its entry in the configuration."""

    agent: str
    kind: str
    path: Path
    said: Mapping[str, Any]


def prepare_data(options: PrepareOptions, say: Say) -> None:
    """Check, measure and collate. Raises `ConfigurationError` for rows that can't be asked, and for other metrics."""
    datasets = [one for one in _datasets(options.config_paths) if one.kind in _TYPES[options.mode]]
    if not datasets:
        raise ConfigurationError(f"no agent of these files has a dataset of type {' or '.join(_TYPES[options.mode])}")
    for dataset in datasets:
        path = beside(dataset.path, "_metrics.json")
        _write_metrics(path, {**dataset.said, **dataset_metrics(dataset.path)})
        say(f"{dataset.agent}: {dataset.path}, metrics in {path}")
    for kind in _TYPES[options.mode]:
        found = [one for one in datasets if one.kind == kind]
        if found:
            output = options.output_dirpath / f"{kind}.jsonl"
            say(f"{output}: {_collate(found, output)} rows")


def dataset_metrics(path: Path) -> dict[str, Any]:
    """The metrics of a file. Memory does not grow with its rows."""
    num_rows, bad = 0, list[str]()
    with Database(None, _TABLES) as database:
        for row in open_rows(packaged_or_own(path)):
            problem = row.why if not isinstance(row, ReadRow) else _problem(row.fields)
            if problem:
                bad.append(f"{row.where}: {problem}")
                if len(bad) == _SHOWN:
                    break
                continue
            assert isinstance(row, ReadRow)
            num_rows += 1
            for name, value in _values(row.fields):
                _count(database, name, value)
        if bad:
            raise ConfigurationError(f"rows that no agent can be asked: {'; '.join(bad)}")
        return {"Number of examples": num_rows, **_measured(database)}


def _datasets(paths: tuple[Path, ...]) -> Iterator[Dataset]:
    for name, server in made(joined([str(path) for path in paths])).items():
        agents = server.get(AGENTS) if isinstance(server, dict) else None
        for one in agents.values() if isinstance(agents, dict) else ():
            listed = one.get("datasets") if isinstance(one, dict) else None
            yield from (_dataset(name, said) for said in listed or ())


def _dataset(agent: str, said: Any) -> Dataset:
    if not isinstance(said, dict) or not isinstance(said.get("jsonl_fpath"), str):
        raise ConfigurationError(f"a dataset of {agent} has no jsonl_fpath")
    return Dataset(agent, str(said.get("type")), Path(said["jsonl_fpath"]), said)


def _problem(row: Mapping[str, Any]) -> str:
    params = row.get(PARAMS)
    asked = params.get("input") if isinstance(params, dict) else None
    return "" if isinstance(asked, str | list) and asked else f"no {PARAMS} with an `input`"


def _values(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is counted of a row."""
    params = row[PARAMS]
    if params.get("tools") is not None:
        yield "Number of tools", len(params["tools"])
    yield _WORDS, len(json.dumps(params).split())
    asked = params["input"]
    turns = 1 if isinstance(asked, str) else sum(isinstance(one, dict) and one.get("role") == "user" for one in asked)
    if turns:
        yield "Number of turns", turns
    if params.get("temperature") is not None:
        yield "Temperature", params["temperature"]
    for name, value in row.items():
        if name not in (PARAMS, "response"):
            yield from ((name, one) for one in (value if isinstance(value, list) else [value]))


def _count(database: Database, name: str, value: Any) -> None:
    if isinstance(value, int | float) and abs(value) < 1e100:
        database.run("INSERT INTO numbers VALUES (?, ?)", name, float(value))
    elif isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        database.run(
            "INSERT INTO texts VALUES (?, ?, 1) ON CONFLICT (name, value) DO UPDATE SET count = count + 1", name, text
        )


def _measured(database: Database) -> dict[str, Any]:
    fixed = {name: _numbers(database, name) for name in _FIXED}
    query = "SELECT DISTINCT name FROM numbers ORDER BY name LIMIT ?"
    others = {name: _numbers(database, name) for (name,) in database.read(query, _MAX_COLUMNS) if name not in fixed}
    counted = "SELECT name, count(*), sum(count) FROM texts GROUP BY name ORDER BY name LIMIT ?"
    for name, unique, total in database.read(counted, _MAX_COLUMNS):
        others.setdefault(name, {"unique_count": unique, "total_count": total})
    return {**fixed, **others}


def _numbers(database: Database, name: str) -> dict[str, float]:
    statistics, query = RewardStatistics(), "SELECT value FROM numbers WHERE name = ? ORDER BY value"
    for (value,) in database.read(query, name):
        statistics.add(value)
    num, found = statistics.num, (0.0,) * 5
    if num:
        middle_value = middle((value for (value,) in database.read(query, name)), num)
        spread = statistics.std * (num / (num - 1)) ** 0.5 if num > 1 else 0.0
        found = (statistics.mean, statistics.lowest, statistics.highest, middle_value, spread)
    names = ("Average", "Min", "Max", "Median", "Standard deviation")
    return {"Total # non-null values": num, **dict(zip(names, map(_rounded, found), strict=True))}


def _rounded(value: float) -> float:
    return round(value, 2 if abs(value) >= 1 else 3)


def _write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write them, unless they are there. Raises `ConfigurationError` that names a key with another value there."""
    if path.exists():
        try:
            stored = json.loads(path.read_text())
        except ValueError as error:
            raise ConfigurationError(f"{path} is no JSON: remove it") from error
        for name, value in metrics.items():
            if not isinstance(stored, dict) or stored.get(name) != json.loads(json.dumps(value)):
                raise ConfigurationError(
                    f"{path}: its {name!r} is not that of the dataset: remove it if the rows changed"
                )
        return
    replace_text(path, json.dumps(metrics, indent=4) + "\n")


def _collate(datasets: list[Dataset], output: Path) -> int:
    num_rows = 0
    with write_rows(output, "jsonl") as writer:
        for dataset in datasets:
            agent = {"type": AGENTS, "name": dataset.agent}
            for row in open_rows(packaged_or_own(dataset.path)):
                assert isinstance(row, ReadRow)
                writer.write({**row.fields, AGENT: agent})
                num_rows += 1
    return num_rows
