"""What a trainer exports of its run: also what happened before it was started."""

import subprocess
import sys
from datetime import timedelta

from prometheus_client import REGISTRY

from rollstream.history.milestones import Milestones
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.ledger import MOST_REWARD_COMPONENTS, EntryKind
from rollstream.schemas.topics import PROMPTS, SCORED
from rollstream.trainer import metrics
from rollstream.trainer.intake.aging import Upstream
from rollstream.trainer.intake.upstream import export_own_lag
from tests.harness.builders import NOON, an_entry
from tests.harness.running import run_on


def exported(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"rollstream_trainer_{name}", labels) or 0.0


def interruptions() -> tuple[float, float]:
    restarts, rollbacks = (exported("interruptions_total", kind=kind) for kind in ("restart", "rollback"))
    return restarts, rollbacks


def test_entries_are_counted_and_the_newest_step_and_checkpoint_are_kept() -> None:
    entries = (
        an_entry(EntryKind.RESTART, weight_version=0, parent_version=None, step=0),
        an_entry(EntryKind.STEP, finished_at=NOON, checkpoint="file:///c/1-ab"),
        an_entry(EntryKind.STEP, finished_at=NOON + timedelta(minutes=1)),
        an_entry(EntryKind.DROPS, finished_at=NOON + timedelta(minutes=2)),
        an_entry(EntryKind.ROLLBACK, finished_at=NOON + timedelta(minutes=3)),
        an_entry(EntryKind.RESTART, finished_at=NOON + timedelta(minutes=4)),
    )
    found = Milestones()
    for entry in entries:
        found = found.after(entry)
    assert found == Milestones(
        restarts=2, rollbacks=1, last_step_at=NOON + timedelta(minutes=1), last_checkpoint_at=NOON
    )


def test_a_trainer_goes_on_from_what_the_ledger_held_before_it() -> None:
    restarts, rollbacks = interruptions()
    metrics.begin(Milestones(restarts=7, rollbacks=2, last_step_at=NOON, last_checkpoint_at=None))
    assert interruptions() == (restarts + 7, rollbacks + 2)
    assert exported("last_step_timestamp_seconds") == NOON.timestamp()
    assert exported("last_checkpoint_timestamp_seconds") == 0
    metrics.export(an_entry(EntryKind.RESTART))
    assert interruptions() == (restarts + 8, rollbacks + 2)


def test_a_step_sets_its_time_and_that_of_its_checkpoint() -> None:
    later, latest = NOON + timedelta(hours=1), NOON + timedelta(hours=2)
    metrics.export(an_entry(finished_at=later, checkpoint="file:///c/1-ab"))
    metrics.export(an_entry(finished_at=latest))
    assert exported("last_step_timestamp_seconds") == latest.timestamp()
    assert exported("last_checkpoint_timestamp_seconds") == later.timestamp()
    metrics.export(an_entry(EntryKind.DROPS, finished_at=latest + timedelta(hours=1)))
    assert exported("last_step_timestamp_seconds") == latest.timestamp()


def test_before_the_ledger_is_read_no_count_of_interruptions_is_exported() -> None:
    # A count of 0 first would make all of them look new. In a process of its own, since tests before this one count.
    code = (
        "from prometheus_client import generate_latest; from rollstream.trainer import metrics;"
        "from rollstream.history.milestones import Milestones; print('interruptions_total{' in str(generate_latest()));"
        "metrics.begin(Milestones()); print(str(generate_latest()).count('interruptions_total{'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "2"]


def test_the_trainers_lag_is_what_lies_behind_its_commits_and_grows_while_it_does_nothing() -> None:
    run = run_on(KafkaSettings(), "lagging")
    prompts, scored = run.topic(PROMPTS), run.topic(SCORED)
    ends = [Upstream()]
    committed = {(prompts, 0): 4, (prompts, 1): 9, (scored, 0): 30}
    export_own_lag("lagging.trainer", run, lambda: ends[-1], lambda: committed)

    def lag(topic: str) -> float | None:
        labels = {"group": "lagging.trainer", "topic": topic}
        return REGISTRY.get_sample_value("rollstream_bus_consumer_lag_records", labels)

    assert (lag(prompts), lag(scored)) == (0, 0), "nothing is known yet"
    # A partition end may be older than the commit.
    ends.append(Upstream(prompts_end={0: 5, 1: 8}, scored_end={0: 30, 1: 2}))
    assert (lag(prompts), lag(scored)) == (1, 2)
    ends.append(Upstream(prompts_end={0: 50, 1: 9}, scored_end={0: 100, 1: 2}))
    assert (lag(prompts), lag(scored)) == (46, 72)


def test_names_of_reward_functions_do_not_become_series_without_bound() -> None:
    for number in range(100):
        metrics.export(an_entry(metrics={f"reward_component/of_step_{number}": 0.5}))
    (family,) = metrics.REWARD_COMPONENT.collect()
    assert len(family.samples) == MOST_REWARD_COMPONENTS


def test_missing_samples_are_exported_by_their_failure_until_a_step_has_none() -> None:
    def share(code: str) -> float | None:
        return REGISTRY.get_sample_value("rollstream_trainer_missing_ratio", {"code": code})

    metrics.export(
        an_entry(metrics={"missing_ratio": 0.5, "missing_ratio/timeout": 0.5, "missing_ratio/of a stranger": 1.0})
    )
    assert (share("timeout"), share("lost"), share("of a stranger")) == (0.5, 0.0, None)
    metrics.export(an_entry(metrics={"missing_ratio": 0.0}))
    assert share("timeout") == 0.0
