"""An archive of a run of the real trainer: an outside reader finds the same records, and the summary the same figures.

The outside reader knows Kafka, Avro and the packaged schemas, and no other code of this project.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import obstore.fsspec
import pandas as pd
import pytest
from click.testing import CliRunner

from rollstream.archive.reading import joined
from rollstream.cli.archive import command
from rollstream.cli.replay import command as replay_command
from rollstream.local.demo.facts import FactsReader
from rollstream.local.demo.summary import Measured, RunSummary, summarize
from tests.chaos.accounting import Account, OutsideClient, surviving_entries
from tests.chaos.records import Fields, decoded
from tests.harness.running import Run
from tests.harness.small_s3 import SmallS3, a_small_s3
from tests.harness.trainer_runs import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    a_scored,
    a_trainer_run,
    configure,
    ledger,
    put_scored,
    scored,
    submitted,
    survivors,
    trainers,
    write_model,
)
from tests.harness.waits import wait_until

NUM_STEPS = 5
URL = "s3://bucket/archive"
README = Path(__file__).parents[2] / "services/rollstream/archive/README.md"


@pytest.fixture(scope="module")
def s3() -> Iterator[SmallS3]:
    with a_small_s3() as server:
        yield server


@pytest.fixture(scope="module")
def run(kafka: str, s3: SmallS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Five steps, a fourth one that a kill -9 cut, two groups without spread, an open one, repeats and a bad record.

    It is archived before the cut and after the end, on a disk and in a bucket.
    """
    directory = tmp_path_factory.mktemp("run")
    with (
        a_trainer_run(kafka, f"archived-{directory.name}", directory, write_model(directory / "model")) as fresh,
        trainers(fresh) as start,
    ):
        storage = s3.storage(directory / "cache", 5)
        fresh.tables["storage"] = {"allow_http": True}
        fresh.tables["storage.options"] = {name: text.get_secret_value() for name, text in storage.options.items()}
        configure(fresh, checkpoint_every=3, num_steps=NUM_STEPS)
        same = submitted(fresh, 2, first=100)
        put_scored(fresh, [a_scored(prompt, index, 0, reward=1.0) for prompt in same for index in range(GROUP_SIZE)])
        prompts = submitted(fresh, 4 * GROUPS_PER_STEP)
        scored(fresh, prompts)
        scored(fresh, prompts[:1])
        scored(fresh, submitted(fresh, 1, first=200), samples=1)
        fresh.publish("scored", [("stranger", b"no record")])
        trainer = start()
        wait_until(lambda: survivors(fresh).step == 4, "the step after the checkpoint")
        trainer.kill()
        archive(fresh)
        scored(fresh, submitted(fresh, (NUM_STEPS - 4) * GROUPS_PER_STEP, first=50))
        assert start().wait() == 0
        archive(fresh)
        yield fresh


def archive(run: Run) -> None:
    for output in (str(run.directory / "archive"), URL):
        result = CliRunner().invoke(command, ["--config", str(run.config), "--output", output], catch_exceptions=False)
        assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def outside(run: Run) -> OutsideClient:
    return OutsideClient(run.kafka.bootstrap_servers, run.name)


@pytest.fixture(scope="module")
def account(outside: OutsideClient) -> Account:
    found = outside.account()
    found.check()
    return found


def table(run: Run, name: str) -> pd.DataFrame:
    return pd.read_parquet(run.directory / "archive" / name)


def of_turns(rollout: Fields, name: str, kind: str) -> list[Any]:
    return [value for turn in rollout["turns"] for value in np.frombuffer(turn[name], kind).tolist()]


def expected_sample(record: Fields) -> dict[str, Any]:
    """The columns that a record of `scored` must have, from its Avro fields alone."""
    rollout, scoring = record["rollout"], record["scoring"]
    prompt, turns = rollout["prompt"], rollout["turns"]
    versions = [span["weight_version"] for turn in turns for span in turn["weight_spans"]]
    return {
        **{name: rollout[name] for name in ("group_id", "rollout_id", "attempt_id", "sample_index", "group_size")},
        **{name: prompt[name] for name in ("prompt_id", "environment", "purpose", "reference_answer", "submitted_at")},
        **{name: scoring[name] for name in ("status", "reward", "scorer", "scorer_version", "scored_at")},
        **{name: rollout[name] for name in ("started_at", "finished_at")},
        "components": sorted(scoring["components"].items()),
        "messages": [(message["role"], message["content"]) for message in prompt["messages"]],
        "metadata": prompt["metadata"],
        "completion": turns[-1]["text"],
        "finish_reason": turns[-1]["finish_reason"],
        "rollout_status": rollout["status"],
        "num_turns": len(turns),
        "num_completion_tokens": len(of_turns(rollout, "token_ids", "<i4")),
        "prompt_token_ids": of_turns(rollout, "prompt_token_ids", "<i4"),
        "token_ids": of_turns(rollout, "token_ids", "<i4"),
        "behavior_logprobs": of_turns(rollout, "behavior_logprobs", "<f4"),
        "weight_versions": list(dict.fromkeys(versions)),
        "spans": [[tuple(span.values()) for span in turn["weight_spans"]] for turn in turns],
        "generator": rollout["generator"],
        "sampling": prompt["sampling"],
    }


def archived_sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same from a row of the archive."""
    details, turns = json.loads(row["details"]), json.loads(row["turns"])
    return {
        **row,
        "components": sorted(row["components"]),
        "messages": [(message["role"], message["content"]) for message in json.loads(row["messages"])],
        "metadata": json.loads(row["metadata"]),
        "spans": [[tuple(span.values()) for span in turn["weight_spans"]] for turn in turns],
        "generator": details["rollout"]["generator"],
        "sampling": details["prompt"]["sampling"],
        **{name: list(row[name]) for name in ("prompt_token_ids", "token_ids", "behavior_logprobs", "weight_versions")},
    }


def test_every_record_of_scored_is_one_row_with_the_same_fields(run: Run, account: Account) -> None:
    rows = {
        (row["partition"], row["offset"]): archived_sample(row) for row in table(run, "rollouts").to_dict("records")
    }
    assert len(rows) == len(table(run, "rollouts"))
    assert rows.keys() == account.scored.keys()
    assert len(rows) == (2 + NUM_STEPS * GROUPS_PER_STEP + 1) * GROUP_SIZE + 1
    for place, record in account.scored.items():
        expected = expected_sample(record)
        assert {name: rows[place][name] for name in expected} == expected


def test_the_fate_of_each_rollout_is_what_the_surviving_ledger_says(run: Run, account: Account) -> None:
    trained = {(one["partition"], one["offset"]): entry["step"] for entry in account.chain for one in entry["trained"]}
    rollouts = joined(run.directory / "archive").rollouts
    for row in rollouts.to_dict("records"):
        place, closed = (row["partition"], row["offset"]), account.closed.get(row["group_id"])
        assert row["trained"] == (place in trained)
        if closed is None:
            assert (row["outcome"], row["reason"]) == ("open", "")
            continue
        assert (row["outcome"], row["reason"]) == (closed["outcome"], closed["reason"])
        if place in trained:
            assert row["trained_step"] == trained[place]
    assert int(rollouts.trained.sum()) == len(trained) == NUM_STEPS * GROUPS_PER_STEP * GROUP_SIZE
    assert rollouts.groupby("outcome").group_id.nunique().to_dict() == {"dropped": 2, "open": 1, "trained": 10}


def test_every_entry_of_the_ledger_is_a_row_that_says_whether_it_survives(
    run: Run, outside: OutsideClient, account: Account
) -> None:
    messages = {message.offset(): decoded("ledger", message.value()) for message in outside.messages("ledger")}
    chain = surviving_entries(list(messages.values()))
    steps = joined(run.directory / "archive").steps.to_dict("records")
    assert [row["ledger_offset"] for row in steps] == list(messages)
    for row in steps:
        entry = messages[row["ledger_offset"]]
        same = ("kind", "incarnation", "step", "weight_version", "started_at", "finished_at")
        assert {name: row[name] for name in same} == {name: entry[name] for name in same}
        assert dict(row["metrics"]) == pytest.approx(entry["metrics"], nan_ok=True)
        assert (row["num_trained"], row["num_closed"]) == (len(entry["trained"]), len(entry["closed"]))
        assert row["survives"] == any(entry is kept for kept in chain)
    assert [row["step"] for row in steps if row["kind"] == "step" and not row["survives"]] == [4], "the kill cut one"
    groups = table(run, "groups").to_dict("records")
    told = [(row["ledger_offset"], row["group_id"], row["outcome"], row["reason"]) for row in groups]
    closed = [
        (offset, group["group_id"], group["outcome"], group["reason"])
        for offset, entry in messages.items()
        for group in entry["closed"]
    ]
    assert sorted(told) == sorted(closed)
    prompts = table(run, "prompts")
    assert set(prompts.group_id) == account.prompts.keys()
    assert len(prompts) == len(outside.records("prompts"))


def test_the_bad_record_is_listed(run: Run) -> None:
    [bad] = table(run, "unreadable").to_dict("records")
    assert (bad["topic"], bad["num_bytes"]) == ("scored", len(b"no record"))
    assert "not in the wire format" in bad["why"]


@pytest.fixture(scope="module")
def summary(run: Run) -> RunSummary:
    """What the demo's table would say of this run."""
    facts = FactsReader(run.on_bus)
    facts.read_on()
    measured = Measured(seed=0, learning_rate=0.01, eval_before=0.0, eval_after=0.0, eval_prompts=1)
    found = summarize(facts.facts(ledger(run)), measured)
    assert (found.steps, found.groups_in_flight, found.groups_lost) == (NUM_STEPS, 1, 1)
    assert (found.groups_dropped, found.duplicate_records) == ({"no_spread": 2}, GROUP_SIZE)
    return found


def queries_of_the_readme(language: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    [block] = blocks
    return str(block)


@pytest.mark.parametrize("place", ["archive", URL])
def test_the_pandas_queries_of_the_readme_give_what_the_demos_summary_says(
    run: Run, s3: SmallS3, summary: RunSummary, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(run.directory)
    found: dict[str, Any] = {"storage": s3.storage(run.directory / "cache", 5)}
    code = queries_of_the_readme("python")
    exec(code if place == "archive" else code.replace('joined("archive"', f'joined("{URL}", storage=storage'), found)
    assert found["num_steps"] == summary.steps
    assert found["outcomes"].to_dict() == {"trained": summary.groups_trained, "dropped": 2}
    assert found["reasons"].to_dict() == summary.groups_dropped
    assert len(found["prompts"]) == summary.groups_submitted
    assert len(found["in_flight"]) == summary.groups_in_flight
    assert found["lost"] == summary.groups_lost
    assert len(table(run, "rollouts")) - len(found["rollouts"]) == summary.duplicate_records
    assert found["rollouts"].trained.sum() == summary.rollouts_trained
    assert found["reward"].loc[1] == found["reward_first"] == pytest.approx(summary.reward_first)
    assert found["reward"].loc[NUM_STEPS] == found["reward_last"] == pytest.approx(summary.reward_last)
    assert (found["lengths"]["mean"] == 6).all()
    assert found["lengths"]["count"].tolist() == [GROUPS_PER_STEP * GROUP_SIZE] * NUM_STEPS


class Buckets(obstore.fsspec.FsspecStore):
    """What DuckDB reads a bucket through where its own extension is not installed."""

    protocol = "s3"


@pytest.mark.parametrize("place", ["archive", URL])
def test_the_sql_queries_of_the_readme_give_what_the_demos_summary_says(
    run: Run, s3: SmallS3, summary: RunSummary, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(run.directory)
    options = {name: text.get_secret_value() for name, text in s3.storage(run.directory, 5).options.items()}
    variable, *queries = [one.strip() for one in queries_of_the_readme("sql").split(";") if one.strip()]
    with duckdb.connect() as database:
        database.register_filesystem(Buckets("s3", config=options, client_options={"allow_http": True}))
        database.execute(variable.replace("'archive'", f"'{place}'"))
        database.execute(Path("archive/views.sql").read_text())
        results = [database.execute(one).fetchall() for one in queries]
    fates, reward, [(num_steps, first, last)], [(in_flight, incomplete)] = results
    assert fates == [("dropped", "no_spread", 2), ("trained", "", summary.groups_trained)]
    assert num_steps == summary.steps
    assert (first, last) == (pytest.approx(summary.reward_first), pytest.approx(summary.reward_last))
    assert [step for step, _, _ in reward] == [*range(1, NUM_STEPS + 1), None], "null: the group in flight"
    assert sum(count for _, _, count in reward) == (2 + NUM_STEPS * GROUPS_PER_STEP) * GROUP_SIZE + 1
    assert (in_flight, incomplete) == (summary.groups_in_flight, summary.groups_lost)


def test_the_archive_is_replayed_without_a_broker(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    words = [URL, "--config", str(run.config), "--output", str(output), "--environment", "sort_digits"]
    result = CliRunner().invoke(replay_command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert f"left out: {GROUP_SIZE} another record of the same rollout" in result.output
    assert {row["rollout_id"] for row in rows} == set(table(run, "rollouts").rollout_id)
    assert {row["reward_sort_digits"] for row in rows} == {1.0}, "each answer is the sorted digits"
