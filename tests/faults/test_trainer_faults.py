"""The trainer on a real broker, killed, stopped and started again: nothing is lost, nothing is trained on twice."""

import signal
from pathlib import Path

from confluent_kafka.admin import AdminClient

from rollstream.history.rollback import roll_back
from rollstream.process.crash_points import CRASH_AT
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import WeightStoreError
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.topics import PRODUCERS, WEIGHTS
from tests.harness.builders import a_progress, a_prompt
from tests.harness.running import Run
from tests.harness.trainer_process import on_a_full_disk, start_trainer
from tests.harness.trainer_runs import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    Start,
    a_scored,
    a_trainer_run,
    check_nothing_lost_or_twice,
    commit_all,
    configure,
    ends,
    ledger,
    num_trained,
    put_scored,
    scored,
    scored_groups,
    submitted,
    survivors,
    trainers,
    weight_directories,
)
from tests.harness.waits import wait_until


def truncate(run: Run, topic: str) -> None:
    """Delete every record there is, as retention would."""
    admin = AdminClient(run.kafka.client_config())
    for future in admin.delete_records(ends(run, topic)).values():
        future.result(30)


def test_a_trainer_killed_at_each_crash_point_loses_nothing_and_trains_nothing_twice(run: Run, start: Start) -> None:
    configure(run, checkpoint_every=2, num_steps=4)
    prompts = scored_groups(run, 4 * GROUPS_PER_STEP)
    # Each trainer passes the point once at its first ledger entry, and dies in a later step.
    for point, steps in (
        ("weights_written:3", 1),
        ("checkpoint_written", 1),
        ("transaction_sent:3", 1),
        ("transaction_committed:3", 2),
        ("transaction_sent:2", 2),
    ):
        assert start(**{CRASH_AT: point}).wait() == -signal.SIGKILL, point
        assert survivors(run).step == steps, point
    assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, prompts)
    assert found.step == 4
    assert num_trained(found) == len(prompts)
    published = [record.weight_version for record in run.records(WEIGHTS)]
    assert published == sorted(set(published)), "versions only grow"
    assert published[-1] == found.current_version


def test_a_full_disk_ends_a_trainer_with_70_and_costs_nothing_but_time(run: Run, model: Path) -> None:
    configure(run, checkpoint_every=2, num_steps=4)
    prompts = scored_groups(run, 4 * GROUPS_PER_STEP)
    # A checkpoint holds the model and two moments of it.
    largest = max(file.stat().st_size for file in model.iterdir())
    for file_bytes, steps, root in ((largest // 2, 0, "weights"), (2 * largest, 1, "checkpoints")):
        with on_a_full_disk(run, file_bytes=file_bytes) as trainer:
            assert trainer.wait() == WeightStoreError.exit_code
        said = trainer.log.read_text()
        assert f"WeightStoreError: cannot write below {run.directory / root}: " in said
        assert "free space or move it" in said
        assert not list((run.directory / root).glob(".*"))
        assert len(ledger(run)) == (steps + 1 if steps else 0)
        trainer.log.unlink()
    with trainers(run) as start:
        assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, prompts)
    assert found.step == 4
    assert weight_directories(run) <= {Path(record.uri).name for record in run.records(WEIGHTS)}


def test_a_trainer_that_was_stopped_while_another_took_over_is_fenced_and_its_version_is_deleted(
    run: Run, start: Start
) -> None:
    configure(run, checkpoint_every=1, num_steps=3)
    prompts = scored_groups(run, 3 * GROUPS_PER_STEP)
    stopped = start(**{CRASH_AT: "transaction_sent:3:SIGSTOP"})
    wait_until(lambda: len(weight_directories(run)) == 3, "the weights of the second step")
    assert start().wait() == 0
    stopped.signal(signal.SIGCONT)
    assert stopped.wait() == 75
    found = check_nothing_lost_or_twice(run, prompts)
    assert found.step == 3
    assert weight_directories(run) <= {Path(record.uri).name for record in run.records(WEIGHTS)}


def test_groups_of_a_cut_branch_train_again_once_and_late_duplicates_change_nothing(run: Run, start: Start) -> None:
    configure(run, checkpoint_every=3, num_steps=5)
    prompts = scored_groups(run, 5 * GROUPS_PER_STEP)
    assert start(**{CRASH_AT: "transaction_committed:5"}).wait() == -signal.SIGKILL
    cut = survivors(run).chain[-1]
    assert (cut.step, cut.weight_version) == (4, 4)
    assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, prompts)
    assert [(entry.weight_version, entry.parent_version) for entry in found.chain[-3:]] == [(5, 3), (6, 5), (7, 6)]
    assert {rollout.rollout_id for rollout in cut.trained} <= set(found.trained)

    scored(run, prompts)
    fresh = scored_groups(run, GROUPS_PER_STEP, first=100)
    configure(run, checkpoint_every=3, num_steps=6)
    assert start().wait() == 0
    again = check_nothing_lost_or_twice(run, [*prompts, *fresh])
    assert again.step == 6


def test_a_trainer_asked_to_end_leaves_a_checkpoint_and_the_next_one_repeats_nothing(run: Run, start: Start) -> None:
    configure(run, checkpoint_every=100)
    prompts = submitted(run, 2 * GROUPS_PER_STEP)
    serve = a_prompt(50, run=run.name, purpose=Purpose.SERVE)
    run.submit(serve)
    scored(run, prompts)
    trainer = start()
    wait_until(lambda: len(survivors(run).closed) == len(prompts) + 1, "two steps and a drop")
    assert trainer.terminate() == 0
    before = check_nothing_lost_or_twice(run, [*prompts, serve])
    assert before.checkpoint is not None
    more = scored_groups(run, GROUPS_PER_STEP, first=100)
    configure(run, num_steps=3)
    assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, [*prompts, serve, *more])
    assert found.chain[: len(before.chain)] == before.chain
    assert found.step == 3


def test_groups_that_are_not_trained_on_close_with_a_reason_while_no_step_is_due(run: Run, start: Start) -> None:
    configure(run, lost_after_seconds=1.0)
    serve = a_prompt(1, run=run.name, purpose=Purpose.SERVE, group_size=GROUP_SIZE)
    no_spread, lost, unknown, unfinished = (a_prompt(row, run=run.name, group_size=GROUP_SIZE) for row in range(2, 6))
    run.submit(serve, no_spread, lost, unknown)
    commit_all(run, "generators", "prompts")
    run.submit(unfinished)
    scored(run, [serve])
    put_scored(run, [a_scored(no_spread, index, 0, reward=1.0) for index in range(GROUP_SIZE)])
    scored(run, [unknown], version=77)
    scored(run, [lost, unfinished], samples=3)
    start()
    reasons = {
        serve.group_id: "not_for_training",
        no_spread.group_id: "no_spread",
        unknown.group_id: "unknown_version",
        lost.group_id: "lost",
    }
    wait_until(lambda: len(survivors(run).closed) >= len(reasons), "every drop")
    assert {group_id: group.reason for group_id, group in survivors(run).closed.items()} == reasons


def test_groups_that_made_three_steps_non_finite_do_not_come_again_after_the_restart(run: Run, start: Start) -> None:
    # The first update at this rate makes the weights infinite, so no later step has a finite loss.
    learning = {"threads": 1, "warmup_steps": 0}
    configure(run, checkpoint_every=100, learning={**learning, "learning_rate": 1e39})
    prompts = scored_groups(run, 5 * GROUPS_PER_STEP)
    ended = start()
    assert ended.wait() == 70
    assert "3 steps in a row had a non-finite loss" in ended.said()
    skipped = {group_id for group_id, group in survivors(run).closed.items() if group.reason == "non_finite"}
    assert len(skipped) == 3 * GROUPS_PER_STEP

    configure(run, num_steps=2, learning={**learning, "learning_rate": 0.01})
    assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, prompts)
    assert {group_id for group_id, group in found.closed.items() if group.reason == "non_finite"} == skipped
    assert num_trained(found) == 2 * GROUPS_PER_STEP


def test_a_sample_with_numbers_beyond_the_model_closes_its_group_and_the_others_train(run: Run, start: Start) -> None:
    configure(run, num_steps=1)
    bad, *good = submitted(run, 1 + GROUPS_PER_STEP)
    put_scored(run, [a_scored(bad, index, 0, token_id=10**6) for index in range(GROUP_SIZE)])
    scored(run, good)
    assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, [bad, *good])
    assert found.closed[bad.group_id].reason == "out_of_bounds"
    assert num_trained(found) == GROUPS_PER_STEP


def test_a_sample_that_cannot_be_read_goes_to_dead_letters_and_the_partition_moves_on(run: Run, start: Start) -> None:
    configure(run, num_steps=1)
    prompts = submitted(run, GROUPS_PER_STEP)
    run.publish("prompts", [("x", b"garbage")])
    run.publish("scored", [(prompts[0].group_id, b"garbage"), (prompts[1].group_id, None)])
    scored(run, prompts)
    assert start().wait() == 0
    check_nothing_lost_or_twice(run, prompts)
    assert sorted(message.value or b"" for message in run.messages("dead-letters")) == [b"", b"garbage"]


def test_records_that_expired_unread_are_refused_unless_the_loss_is_accepted(run: Run, start: Start) -> None:
    configure(run, num_steps=1, lost_after_seconds=1.0)
    open_group, expired = (a_prompt(row, run=run.name, group_size=GROUP_SIZE) for row in (50, 51))
    # They come after the two in every partition: once they are closed, the trainer knows the two.
    serve = [a_prompt(row, run=run.name, purpose=Purpose.SERVE) for row in range(100, 120)]
    run.submit(open_group, expired)
    scored(run, [open_group, expired], samples=1)
    run.submit(*serve)
    trainer = start()
    wait_until(lambda: len(survivors(run).closed) == len(serve), "the trainer to have read every prompt")
    scored_groups(run, GROUPS_PER_STEP)
    assert trainer.wait() == 0
    commit_all(run, "generators", "prompts")
    (unread,) = submitted(run, 1, first=200)
    progress = a_progress(open_groups=(unread.group_id,), recently_closed=tuple(p.group_id for p in serve))
    run.publish("producers", [(progress.producer, AvroCodec(PRODUCERS).encode(progress))])
    truncate(run, "prompts")
    truncate(run, "scored")
    scored(run, [open_group])
    refused = start()
    assert refused.wait() == 78
    assert "--accept-loss" in refused.said()
    configure(run, num_steps=2)
    start("--accept-loss")
    gone = {expired.group_id, unread.group_id}
    wait_until(lambda: gone <= survivors(run).closed.keys(), "the expired groups to close")
    found = survivors(run)
    assert {found.closed[group].reason for group in gone} == {"expired"}
    assert open_group.group_id not in found.closed
    assert {found.closed[prompt.group_id].reason for prompt in serve} == {"not_for_training"}


def test_a_trainer_goes_on_from_the_version_that_an_operator_rolled_back_to(run: Run, start: Start) -> None:
    configure(run, checkpoint_every=1, num_steps=3, keep_checkpoints=5)
    prompts = scored_groups(run, 3 * GROUPS_PER_STEP)
    assert start().wait() == 0
    roll_back(StageSettings.load(run.config), 1, force=False)
    assert len(survivors(run).closed) == GROUPS_PER_STEP
    assert start().wait() == 0
    found = check_nothing_lost_or_twice(run, prompts)
    assert [entry.weight_version for entry in found.chain] == [0, 1, 5, 6, 7]
    assert found.step == 3


def test_a_second_trainer_learns_from_the_same_rollouts_as_a_run_of_its_own(
    run: Run, start: Start, kafka: str, tmp_path: Path, model: Path
) -> None:
    prompts = scored_groups(run, GROUPS_PER_STEP, version=7)
    with a_trainer_run(kafka, f"{run.name}-b", tmp_path / "other", model) as other:
        configure(other, source_run=run.name, num_steps=1)
        assert start_trainer(other).wait() == 0
        assert check_nothing_lost_or_twice(other, prompts).step == 1
    assert ledger(run) == []
