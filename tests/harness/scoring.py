"""Rows of rollouts, reward functions of a user's own, and `analyze-rewards` on them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from rollstream.cli.analyze_rewards import command
from rollstream.rows.write import write_rows

OWN = '''
import json, os, signal, time

def brevity(sample):
    """As a reward of this project: of the whole sample."""
    return -len(sample.completion)

def as_verl(data_source, solution_str, ground_truth, extra_info=None):
    """As verl calls one."""
    return {"score": float(ground_truth in solution_str), "split": extra_info["split"]}

def unruly(sample):
    """What the response orders."""
    match sample.completion:
        case "hang": time.sleep(3600)
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "raise": raise ValueError("as ordered")
        case "nan": return float("nan")
    return 1.0

def counted(sample):
    """The number in the response. Notes each call."""
    with open(os.path.join(os.path.dirname(__file__), "calls"), "a") as stream:
        stream.write(f"{sample.completion}\\n")
    return sum(int(word) for word in sample.completion.split()[1:])

def noted(sample):
    """1 for all. Notes what it was given."""
    told = [sample.metadata["number"], [(one.role, one.content) for one in sample.messages], sample.reference_answer]
    with open(os.path.join(os.path.dirname(__file__), "noted"), "a") as stream:
        stream.write(json.dumps(told) + "\\n")
    return 1.0

number = 5
'''


def put_own_rewards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module with reward functions of a user's own, which Python finds; its name."""
    folder.mkdir()
    (folder / "own_rewards.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    return "own_rewards"


def a_row(response: str | None = "a", data_idx: int = 0, sample_idx: int = 0, **fields: Any) -> dict[str, Any]:
    """A row as generate-rollouts writes it."""
    return {
        "prompt": f"question {data_idx}", "response": response, "sample_idx": sample_idx, "data_idx": data_idx,
        "temperature": 0.7, "top_p": 0.9, "max_tokens": 512,
        "status": "unresolved" if response is None else "completed",
        "failure": "engine: connection refused" if response is None else None, **fields,
    }  # fmt: skip


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with write_rows(path, "jsonl" if path.suffix == ".jsonl" else "parquet") as writer:
        for row in rows:
            writer.write(row)
    return path


def analyzed(rollouts: Path, *words: str) -> Result:
    result = CliRunner().invoke(command, ["--rollouts", str(rollouts), "--num_processes", "1", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def scored(rollouts: Path, *words: str) -> list[dict[str, Any]]:
    """The rows of the output; nulls are None."""
    result = analyzed(rollouts, *words)
    assert result.exit_code == 0, result.output
    return output_rows(rollouts)


def output_rows(rollouts: Path) -> list[dict[str, Any]]:
    output = rollouts.with_name(f"rollouts_with_rewards{rollouts.suffix}")
    if output.suffix == ".jsonl":
        return [json.loads(line) for line in output.read_text().splitlines()]
    found: list[dict[str, Any]] = json.loads(pd.read_parquet(output).to_json(orient="records"))
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
