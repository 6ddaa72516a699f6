"""Collections of `ng_collect_rollouts` in this process, from a server of `gym_server`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollstream.gym.collecting import collect_rollouts
from rollstream.gym.options import GymCollectOptions, from_words
from rollstream.process.stop import Stop
from tests.harness.gym_server import AGENT, GymServer


def a_gym_row(number: int = 0, **fields: Any) -> dict[str, Any]:
    """A row whose expected answer is its number."""
    params = {"input": [{"role": "user", "content": f"Say {number}."}]}
    return {"responses_create_params": params, "expected_answer": str(number), **fields}


def written(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A JSONL file of these rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class GymRun:
    """`ng_collect_rollouts` in a folder: `run` with more words, and what it wrote and said."""

    def __init__(self, folder: Path, server: GymServer, rows: Iterable[Mapping[str, Any]]) -> None:
        self.input = written(folder / "tasks.jsonl", rows)
        self.output = folder / "rollouts.jsonl"
        self.server = server
        self.said: list[str] = []

    @property
    def words(self) -> list[str]:
        """The options that are always given."""
        files = [f"+input_jsonl_fpath={self.input}", f"+output_jsonl_fpath={self.output}"]
        return [*files, f"+agent_name={AGENT}", f"+head_server.port={self.server.port}"]

    def run(self, *words: str) -> int:
        """The exit code."""
        self.said.clear()
        options = from_words(GymCollectOptions, [*self.words, *words])
        return collect_rollouts(options, Stop(), self.said.append)

    @property
    def rollouts(self) -> list[dict[str, Any]]:
        """The rows of the output."""
        return read(self.output)

    @property
    def figures(self) -> dict[str, Any]:
        """The JSON that was printed at the end."""
        found = json.loads("\n".join(self.said[self.said.index("{") :]))
        assert isinstance(found, dict)
        return found

    def beside(self, ending: str) -> Path:
        """Another file of the collection."""
        return self.output.with_name(f"rollouts{ending}")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def indices(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Task and rollout of each row."""
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]
