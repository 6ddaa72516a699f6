"""`ng_reward_profile` and `ng_aggregate_rollouts`: metrics of files of rollouts, without any server."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollstream.gym.aggregate import agent_metrics, metrics_path, task_metrics, write_metrics
from rollstream.gym.names import AGENT, AGENT_METRICS, COMPANIONS, MATERIALIZED, PROFILE, TASK, beside
from rollstream.gym.options import AggregateOptions, ProfileOptions
from rollstream.gym.score_table import ScoreTable
from rollstream.process.files import replace_text
from rollstream.process.terminal import Say
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from rollstream.rows.write import write_rows
from rollstream.schemas.errors import ConfigurationError


def profile_rewards(options: ProfileOptions, say: Say) -> None:
    """Write a line a task and an object an agent. Raises `ConfigurationError` that lists rollouts that are missing."""
    rollouts = options.rollouts_jsonl_fpath
    inputs = options.materialized_inputs_jsonl_fpath or beside(rollouts, MATERIALIZED)
    table = ScoreTable()
    try:
        table.read(open_rows(rollouts))
        table.expect(open_rows(inputs))
        missing = table.missing()
        if missing and not options.allow_partial_rollouts:
            raise ConfigurationError(
                f"{rollouts} lacks {sum(missing.values())} rollouts of {inputs}, e.g. "
                f"{', '.join(table.shown_missing())}: collect them, or write +allow_partial_rollouts=true"
            )
        _write_profile(table, missing, rollouts, say)
    finally:
        table.close()


def aggregate_rollouts(options: AggregateOptions, say: Say) -> None:
    """Join shards, and write their metrics. Raises `ConfigurationError` if a rollout is in two of them."""
    output = options.output_jsonl_fpath
    shards = sorted(path for path in _matching(options.input_glob) if _is_shard(path, output))
    if not shards:
        raise ConfigurationError(f"no file of rollouts matches {options.input_glob!r}")
    table = ScoreTable()
    try:
        for shard in shards:
            table.read(open_rows(shard))
        with write_rows(output, "jsonl") as writer:
            for shard in shards:
                for row in open_rows(shard):
                    assert isinstance(row, ReadRow)
                    writer.write(row.fields)
        write_metrics(table, metrics_path(output))
    finally:
        table.close()
    say(f"{len(shards)} files: {output}, {metrics_path(output)}")


def _matching(pattern: str) -> Iterator[Path]:
    """Files that a pattern names, from the working directory or from the root."""
    path = Path(pattern)
    try:
        yield from Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    except (ValueError, NotImplementedError) as error:
        raise ConfigurationError(f"input_glob {pattern!r} is no pattern of files: {error}") from error


def _is_shard(path: Path, output: Path) -> bool:
    is_output = output.exists() and path.samefile(output)
    return path.is_file() and path.suffix == ".jsonl" and not path.name.endswith(COMPANIONS) and not is_output


def _write_profile(table: ScoreTable, missing: Mapping[tuple[str, int], int], rollouts: Path, say: Say) -> None:
    profile, agents = beside(rollouts, PROFILE), beside(rollouts, AGENT_METRICS)
    with write_rows(profile, "jsonl") as writer:
        for line in _profile_lines(table, missing):
            writer.write(line)
    found = [agent_metrics(table, agent) for agent in table.agents()]
    replace_text(agents, json.dumps(found, allow_nan=False, indent=1) + "\n")
    say(f"written: {profile}, {agents}")


def _profile_lines(table: ScoreTable, missing: Mapping[tuple[str, int], int]) -> Iterator[dict[str, Any]]:
    without_any = dict(missing)
    for agent in table.agents():
        for task in task_metrics(table, agent):
            lacks = without_any.pop((agent, task[TASK]), 0)
            share = 100 * task["num_rollouts"] / (task["num_rollouts"] + lacks)
            yield {**task, "missing_num_rollouts": lacks, "completion_percent": share}
    for (agent, index), lacks in without_any.items():
        nothing = {"num_rollouts": 0, "missing_num_rollouts": lacks, "completion_percent": 0.0}
        yield {AGENT: {"name": agent}, TASK: index, **nothing}
