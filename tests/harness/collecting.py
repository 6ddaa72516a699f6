"""Collections on the scripted engine, in this process."""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings
from rollstream.offline.askers import EngineAsker
from rollstream.offline.collection import CollectReport, collect
from rollstream.offline.job import Job
from rollstream.offline.options import CollectOptions
from rollstream.offline.output import scored_columns
from rollstream.offline.settings import CollectSettings
from rollstream.offline.tasks import file_tasks
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.schemas.prompt import Sampling


def some_prompts(path: Path, count: int) -> Path:
    """A JSONL file of digits to sort, whose answers all differ."""
    with path.open("w") as stream:
        for row in range(count):
            digits = f"{row:05}"
            fields = {"prompt": f"{digits}=", "answer": "".join(sorted(digits)), "extra_info": {"index": row}}
            stream.write(json.dumps(fields) + "\n")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def settings_for(output: Path, **fields: Any) -> CollectSettings:
    """Two samples of each task, 8 in flight, JSONL."""
    values: dict[str, Any] = {
        "output": output,
        "kind": "jsonl",
        "num_samples": 2,
        "sampling": Sampling(max_tokens=16, temperature=0.7),
        "concurrency": 8,
        "described": {"engine": "scripted"},
    }
    return CollectSettings(**{**values, **fields})


def a_job(
    source: Path | str,
    output: Path,
    *,
    engine: EngineSettings | None = None,
    environments: Mapping[str, Declaration] | None = None,
    **options: Any,
) -> Job:
    """What `collect` is told by these options, on the scripted engine."""
    scripted = EngineSettings(kind="scripted", model_path=Path("no-tokenizer"))
    chosen = CollectOptions(source=str(source), output=output, model="scripted", **options)
    return Job(options=chosen, engine=engine or scripted, environments=environments or {})


def collected(
    source: Path, settings: CollectSettings, engine: Engine | None = None, stop: Stop | None = None
) -> CollectReport:
    """One run of a collection."""
    tasks = file_tasks(open_rows(source), prompt_key="prompt")
    return collect(
        settings,
        tasks,
        EngineAsker(engine or a_scripted_engine(), settings, tasks),
        stop or Stop(),
        scored_columns,
    )


def a_scripted_engine(**fields: Any) -> ScriptedEngine:
    """Answers right half of the time."""
    return ScriptedEngine(EngineSettings(kind="scripted", model_path=Path("no-tokenizer"), **fields))


class CountingEngine(ScriptedEngine):
    """The scripted engine, which fails the prompts of which `fails` says so, and keeps all prompts it was asked."""

    def __init__(self, fails: Callable[[str], Exception | None] = lambda prompt: None) -> None:
        super().__init__(EngineSettings(kind="scripted", model_path=Path("no-tokenizer")))
        self.fails = fails
        self.asked: list[str] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        prompt = self.detokenize(request.prompt_token_ids)
        self.asked.append(prompt)
        error = self.fails(prompt)
        if error is not None:
            raise error
        return await super().generate(request)


def keys_of(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    """Which samples of which rows."""
    return [(row["data_idx"], row["sample_idx"]) for row in rows]


def noted_facts(progress: Path, job: str = "collect") -> dict[str, Any]:
    """The facts of a job in a progress file, which a process may hold."""
    found = _read(progress, "SELECT name, value FROM facts WHERE job = ?", job)
    return {name: json.loads(value) for name, value in found}


def noted_samples(progress: Path) -> list[tuple[int, int]]:
    """Row and sample of all that ended, of all jobs in a progress file, which a process may hold."""
    return _read(progress, "SELECT row, sample FROM done ORDER BY row, sample")


def _read(progress: Path, query: str, *values: str) -> list[Any]:
    """What a query finds in a copy: the file itself belongs to one process alone. Nothing while it is being made."""
    with tempfile.TemporaryDirectory() as folder:
        for path in progress.parent.glob(f"{progress.name}*"):
            with suppress(FileNotFoundError):
                shutil.copy(path, folder)
        with closing(sqlite3.connect(Path(folder) / progress.name)) as database:
            try:
                return database.execute(query, values).fetchall()
            except sqlite3.DatabaseError:
                return []
