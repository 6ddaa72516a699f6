"""The generator stage as a process, with the scripted engine, on the real broker."""

import json
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path

import pytest

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.commit_notes import marks_in
from rollstream.local.ports import free_ports
from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import RolloutGenerated, Status
from rollstream.schemas.topics import (
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    ROLLOUTS,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    WEIGHTS,
    WEIGHTS_APPLIED,
)
from rollstream.schemas.weights import ApplyOutcome, WeightsApplied, WeightsKind, WeightsPublished
from tests.harness.builders import a_prompt, published
from tests.harness.running import Run, a_run
from tests.harness.scraping import scraped
from tests.harness.waits import wait_until

pytestmark = pytest.mark.usefixtures("forks")


@pytest.fixture
def run(kafka: str, redis_url: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path, redis_url=redis_url) as run:
        scripted(run)
        yield run


def scripted(run: Run, token_seconds: float = 0.0, **settings: object) -> None:
    run.tables["generator"] = settings
    engine = {"kind": "scripted", "model_path": run.directory, "scripted": {"token_seconds": token_seconds}}
    run.tables["generator.engine"] = engine


def rollouts(run: Run) -> list[RolloutGenerated]:
    return run.records(ROLLOUTS)


def submitted(run: Run, rows: Iterable[int]) -> list[PromptSubmitted]:
    """Prompts, on their topic."""
    prompts = [a_prompt(row, run=run.name) for row in rows]
    run.submit(*prompts)
    return prompts


def wait_for_samples(run: Run, count: int) -> list[RolloutGenerated]:
    """All records, once there are `count` different samples."""

    def enough() -> list[RolloutGenerated] | None:
        found = rollouts(run)
        return found if len({sample.rollout_id for sample in found}) >= count else None

    return wait_until(enough, f"{count} samples")


def wait_for_applied(run: Run, version: int, outcome: ApplyOutcome = ApplyOutcome.APPLIED) -> WeightsApplied:
    def found() -> WeightsApplied | None:
        records = [r for r in run.records(WEIGHTS_APPLIED) if (r.weight_version, r.outcome) == (version, outcome)]
        return records[-1] if records else None

    return wait_until(found, f"version {version} {outcome.value}")


def test_every_sample_of_a_prompt_comes_back_with_tokens_logprobs_and_versions(run: Run) -> None:
    run.publish_weights(0)
    [port] = free_ports(1)
    generator = run.start("generator", ROLLSTREAM_HEALTH_PORT=str(port))
    prompts = [a_prompt(row, run=run.name) for row in range(5)]
    run.submit(*prompts)
    samples = wait_for_samples(run, 20)
    assert len(samples) == 20
    for sample in samples:
        turn = sample.turns[0]
        assert sample.status is Status.COMPLETED
        assert len(turn.token_ids) == len(turn.behavior_logprobs) > 0
        assert [(span.start, span.end, span.weight_version) for span in turn.weight_spans] == [
            (0, len(turn.token_ids), 0)
        ]
        assert sample.prompt in prompts
    wait_until(lambda: run.committed("generators", "prompts") == 5, "the prompts' offsets to be committed")
    for seconds in ("weight_load_seconds", "weight_stall_seconds"):
        assert scraped(port, f"rollstream_generator_{seconds}_count") == 1
    assert generator.terminate() == 0


def test_a_task_that_cannot_be_run_fails_with_the_reason_and_the_partition_moves_on(run: Run) -> None:
    run.publish_weights(0)
    run.start("generator")
    size = {"group_size": 2, "run": run.name}
    bad = {
        "prompt_too_long": a_prompt(1, messages=(Message(role="user", content="7" * 5000),), **size),
        "unsupported_sampling": a_prompt(2, sampling=Sampling(temperature=0.0, max_tokens=8), **size),
        "unknown_agent": a_prompt(
            3, agent=AgentChoice(name="os.system", options={"command": f"touch {run.directory}/ran"}), **size
        ),
    }
    run.submit(*bad.values(), a_prompt(4, **size))
    samples = wait_for_samples(run, 8)
    for reason, prompt in bad.items():
        own = [sample for sample in samples if sample.group_id == prompt.group_id]
        assert len(own) == 2
        assert all(sample.status is Status.FAILED and str(sample.failure).startswith(f"{reason}: ") for sample in own)
    assert sum(sample.status is Status.COMPLETED for sample in samples) == 2
    assert not (run.directory / "ran").exists()


@pytest.mark.parametrize("crash_at", ["effects_confirmed", pytest.param(None, marks=pytest.mark.slow)])
def test_a_killed_generator_loses_no_sample(run: Run, crash_at: str | None) -> None:
    scripted(run, token_seconds=0.3, max_tokens_in_flight=240)
    run.publish_weights(0)
    victim = run.start("generator", **({CRASH_AT: crash_at} if crash_at else {}))
    run.submit(*(a_prompt(row, run=run.name) for row in range(20)))
    if crash_at is None:
        wait_until(lambda: rollouts(run), "a first sample")
        victim.kill()
    else:
        assert victim.wait() == -9
    before = {sample.rollout_id for sample in rollouts(run)}
    scripted(run)
    run.start("generator")
    samples = wait_for_samples(run, 80)
    assert 0 < len(before) < 80
    assert before < {sample.rollout_id for sample in samples}
    assert len({(sample.rollout_id, sample.attempt_id) for sample in samples}) == len(samples)


@pytest.mark.slow
def test_a_generator_stopped_past_its_session_publishes_nothing_of_what_another_took_over(run: Run) -> None:
    scripted(run, token_seconds=1.0)
    run.publish_weights(0)
    stopped = run.start("generator", ROLLSTREAM_GENERATOR_ID="stopped")
    taken = submitted(run, range(10))
    wait_until(lambda: in_flight(run) == 40, "every sample in flight")
    stopped.signal(signal.SIGSTOP)
    scripted(run)
    run.start("generator", ROLLSTREAM_GENERATOR_ID="heir")
    wait_until(lambda: run.committed("generators", "prompts") == 10, "the heir to do everything")

    stopped.signal(signal.SIGCONT)
    prompts = list(taken)

    def works_again() -> bool:
        prompts.extend(submitted(run, range(len(prompts), len(prompts) + 4)))
        return any(sample.generator.generator_id == "stopped" for sample in rollouts(run))

    wait_until(works_again, "the stopped one to have a share again")
    wait_until(lambda: run.committed("generators", "prompts") == len(prompts), "everything to be committed")
    samples = rollouts(run)
    ids = {prompt.group_id for prompt in taken}
    assert {sample.generator.generator_id for sample in samples if sample.group_id in ids} == {"heir"}
    assert Counter(sample.group_id for sample in samples) == {prompt.group_id: 4 for prompt in prompts}


def test_an_update_in_mid_sample_gives_the_sample_two_spans(run: Run) -> None:
    """Updates follow one another until all samples are there; a sample takes longer than an update."""
    scripted(run, token_seconds=2.0)
    run.publish_weights(0)
    run.start("generator")
    wait_for_applied(run, 0)
    run.submit(a_prompt(1, run=run.name, group_size=8))
    for version in count(1):
        run.publish_weights(version)
        wait_for_applied(run, version)
        if len(rollouts(run)) == 8:
            break
    pairs = [pair for sample in rollouts(run) for pair in pairwise(sample.weight_versions)]
    assert pairs
    assert all(earlier < later for earlier, later in pairs)


def test_a_generator_says_with_which_version_it_began_the_prompts_in_work(run: Run) -> None:
    """Not of those that it has taken and that wait for room in the engine, as the second one does here."""
    scripted(run, token_seconds=2.0)
    run.tables["generator.engine"] = {**run.tables["generator.engine"], "max_num_seqs": 4}
    run.publish_weights(3)
    run.start("generator")
    wait_for_applied(run, 3)
    first, _ = submitted(run, [1, 2])
    places = {message.key: (message.partition, message.offset) for message in run.messages("prompts")}
    prompts = f"{run.name}.prompts"
    shape = KafkaAdmin(run.kafka).shape(prompts)
    with closing(run.on_bus.committed_by("generators")) as generators:

        def begun() -> dict[tuple[int, int], int]:
            commits = generators.commits(prompts, shape).items()
            return {(number, at): mark for number, commit in commits for at, mark in marks_in(commit.note).items()}

        wait_until(lambda: begun() == {places[first.group_id.encode()]: 3}, "the first prompt's version")
        wait_for_samples(run, 8)
        wait_until(lambda: begun() == {}, "no prompt in work")


def test_a_generator_has_one_and_a_half_times_the_samples_in_hand_that_its_engine_runs(run: Run) -> None:
    """However long they may be: 65,536 tokens, the bound before, are one prompt of eight samples."""
    scripted(run, token_seconds=60.0)
    run.tables["generator.engine"] = {**run.tables["generator.engine"], "max_num_seqs": 16, "max_model_len": 16384}
    run.publish_weights(0)
    [port] = free_ports(1)
    run.start("generator", ROLLSTREAM_HEALTH_PORT=str(port))
    long_answers = {"group_size": 8, "sampling": Sampling(temperature=1.0, max_tokens=8192)}
    run.submit(*(a_prompt(row, run=run.name, **long_answers) for row in range(10)))

    def in_hand() -> list[float | None]:
        names = ("in_flight_records", "in_flight_weight")
        return [scraped(port, f"rollstream_bus_{name}", group=f"{run.name}.generators") for name in names]

    wait_until(lambda: in_hand() == [3, 24], "3 prompts of 8 samples in hand", seconds=120)


def in_flight(run: Run) -> int:
    """What the generator says in Redis."""
    import redis

    assert run.redis_url
    client = redis.Redis.from_url(run.redis_url)
    try:
        states = [json.loads(client.get(key) or "{}") for key in client.scan_iter(f"{run.name}:fleet:*")]
    finally:
        client.close()
    return sum(int(state.get("in_flight", 0)) for state in states)


def test_a_corrupt_version_is_reported_and_the_old_one_serves_until_the_next(run: Run) -> None:
    [port] = free_ports(1)

    def exported(name: str) -> float | None:
        return scraped(port, f"rollstream_generator_{name}")

    run.publish_weights(0)
    run.start("generator", ROLLSTREAM_HEALTH_PORT=str(port), ROLLSTREAM_MAX_POLICY_LAG="3")
    wait_for_applied(run, 0)
    good = run.publish_weights(1, uri=(run.directory / "weights" / "0-test").as_uri(), content=b"other than version 0")
    failed = wait_for_applied(run, 1, ApplyOutcome.FAILED)
    assert good.files[0].name in (failed.error or "")
    wait_until(lambda: exported("policy_lag_steps") == 1, "the generator to be a step behind")
    assert exported("max_policy_lag_steps") == 3
    assert exported("stale_since_timestamp_seconds") == good.created_at.timestamp()
    run.submit(a_prompt(1, run=run.name))
    assert {sample.weight_versions for sample in wait_for_samples(run, 4)} == {(0,)}
    run.publish_weights(2)
    wait_for_applied(run, 2)
    wait_until(lambda: exported("policy_lag_steps") == exported("stale_since_timestamp_seconds") == 0, "no lag")
    run.submit(a_prompt(2, run=run.name))
    assert {sample.weight_versions for sample in wait_for_samples(run, 8)} == {(0,), (2,)}


def test_records_that_no_trainer_wrote_are_passed_over_by_joiners_and_runners(run: Run) -> None:
    run.publish("weights", [("policy", b"garbage")])
    real = run.publish_weights(0)
    foreign = list(foreign_versions(real))
    publish_versions(run, foreign)
    run.start("generator")
    wait_for_applied(run, 0)
    run.publish("weights", [("policy", None), ("policy", b"\0\0\0\0\x63abc")])
    publish_versions(run, foreign)
    run.submit(a_prompt(1, run=run.name))
    assert {sample.weight_versions for sample in wait_for_samples(run, 4)} == {(0,)}
    run.publish_weights(1)
    wait_for_applied(run, 1)


def foreign_versions(real: WeightsPublished) -> Iterator[WeightsPublished]:
    """What anybody can write who reaches the topic: places, names, numbers and parents that no trainer chose."""
    device = real.files[0].model_copy(update={"name": "zero", "num_bytes": 0})
    nul, outside = (real.files[0].model_copy(update={"name": name}) for name in ("a\0b", "../../rollstream.toml"))
    yield published(7, parent_version=8, uri="file:///dev", files=(device,))
    yield published(8, parent_version=7, uri=real.uri, files=(nul,))
    yield published(9, parent_version=9, uri=real.uri, files=(outside,))
    yield published(7, parent_version=9, uri=real.uri, files=real.files).model_copy(update={"uri": "x" * 1_000_000})
    yield published(10, parent_version=0, uri=real.uri, files=real.files * 1000)
    yield published(11, parent_version=None, kind=WeightsKind.LORA, uri=real.uri, files=real.files)
    yield published(12, parent_version=None, model="another", uri=real.uri, files=real.files)
    yield published(2**53, parent_version=None, uri="file://[", files=())
    yield published(0, parent_version=None, uri=real.uri, files=()).model_copy(update={"weight_version": 2**63 - 1})


def publish_versions(run: Run, versions: Iterable[WeightsPublished]) -> None:
    run.publish("weights", [(version.model, AvroCodec(WEIGHTS).encode(version)) for version in versions])


def test_a_joiner_reads_back_only_as_far_as_it_must_and_reports_only_what_it_loads(run: Run) -> None:
    """The newest of 600 versions is damaged. It was restored from version 3, which lies far before the newest ones."""
    first = run.publish_weights(0)
    same = {"uri": first.uri, "files": first.files}
    publish_versions(run, [published(number, **same) for number in range(1, 599)])
    run.publish_weights(599, parent_version=3, step=3, uri=first.uri, content=b"other than version 0")
    run.start("generator")
    wait_for_applied(run, 3)
    failed, applied, *retries = [(report.weight_version, report.outcome) for report in run.records(WEIGHTS_APPLIED)]
    assert (failed, applied) == ((599, ApplyOutcome.FAILED), (3, ApplyOutcome.APPLIED))
    assert set(retries) <= {failed}  # on a busy machine it was tried again meanwhile


def test_a_generator_far_behind_a_damaged_version_loads_the_nearest_one_and_goes_on(run: Run) -> None:
    run.shared["max_policy_lag"] = 1
    first = run.publish_weights(0)
    generator = run.start("generator")
    wait_for_applied(run, 0)
    same = {"uri": first.uri, "files": first.files}
    damaged = {**same, "files": (first.files[0].model_copy(update={"sha256": "ef" * 32}),)}
    generator.signal(signal.SIGSTOP)  # so that it reads all three at once
    publish_versions(run, [published(1, **same), published(2, **same), published(3, **damaged)])
    generator.signal(signal.SIGCONT)
    wait_for_applied(run, 3, ApplyOutcome.FAILED)
    wait_for_applied(run, 2)
    run.submit(a_prompt(1, run=run.name))
    assert {sample.weight_versions for sample in wait_for_samples(run, 4)} == {(2,)}


def test_a_joiner_starts_on_the_newest_version_and_one_leaving_loses_nothing(run: Run) -> None:
    scripted(run, token_seconds=0.01)
    for version in range(4):
        run.publish_weights(version)
    first = run.start("generator", ROLLSTREAM_GENERATOR_ID="first")
    run.submit(*(a_prompt(row, run=run.name) for row in range(30)))
    wait_for_applied(run, 3)
    wait_for_samples(run, 1)
    run.start("generator", ROLLSTREAM_GENERATOR_ID="second")
    wait_until(lambda: {r.generator_id for r in run.records(WEIGHTS_APPLIED)} == {"first", "second"}, "the joiner")
    assert [r.weight_version for r in run.records(WEIGHTS_APPLIED) if r.outcome is ApplyOutcome.APPLIED] == [3, 3]
    assert first.terminate() == 0
    run.submit(*(a_prompt(row, run=run.name) for row in range(30, 40)))
    samples = wait_for_samples(run, 160)
    assert {sample.generator.generator_id for sample in samples} == {"first", "second"}


def test_evaluation_prompts_of_a_version_to_come_hold_no_training_back(run: Run) -> None:
    """Each of them alone fills `max_tokens_in_flight`, and waits 5 s: one after another they would take minutes."""
    scripted(run, max_tokens_in_flight=12)
    run.publish_weights(0)
    run.start("generator")
    wait_for_applied(run, 0)
    later = {"purpose": Purpose.EVALUATE, "weight_version": 7, "group_size": 1}
    run.submit(*(a_prompt(row, run=run.name, **later) for row in range(40)), topic=EVAL_PROMPTS)
    run.submit(a_prompt(200, run=run.name, group_size=1))
    assert wait_for_samples(run, 1)[0].status is Status.COMPLETED
    answered = wait_until(lambda: len(found := run.records(EVAL_ROLLOUTS)) == 40 and found, "40 evaluations")
    assert {str(sample.failure) for sample in answered} == {
        "version_gone: version 7 was asked for and is not published; the newest is 0"
    }


def test_clients_prompts_are_answered_on_their_own_topic_whatever_they_say_they_are_for(run: Run) -> None:
    scripted(run)
    run.publish_weights(0)
    run.start("generator")
    prompts = [a_prompt(row, run=run.name, purpose=purpose, group_size=2) for row, purpose in enumerate(Purpose)]
    run.submit(*prompts, topic=SERVE_PROMPTS)
    answered = wait_until(lambda: len(found := run.records(SERVE_ROLLOUTS)) == 2 * len(prompts) and found, "all")
    assert {sample.group_id for sample in answered} == {prompt.group_id for prompt in prompts}
    assert {sample.served for sample in answered} == {None}
    assert run.records(ROLLOUTS) == []


def test_an_evaluation_prompt_is_answered_by_the_version_it_names_or_not_at_all_and_holds_no_training_back(
    run: Run,
) -> None:
    scripted(run, max_tokens_in_flight=12)
    run.publish_weights(0)
    run.publish_weights(1)
    run.start("generator")
    wait_for_applied(run, 1)

    def asked(row: int, version: int) -> None:
        prompt = a_prompt(row, run=run.name, purpose=Purpose.EVALUATE, weight_version=version, group_size=1)
        run.submit(prompt, topic=EVAL_PROMPTS)

    asked(3, 2)
    asked(1, 0)
    asked(2, 1)
    run.submit(a_prompt(4, run=run.name, group_size=1))
    answered = wait_until(lambda: len(found := run.records(EVAL_ROLLOUTS)) == 3 and found, "three evaluations")
    by_version = {sample.prompt.weight_version: sample for sample in answered}
    assert str(by_version[0].failure) == "version_gone: version 0 was asked for, 1 is loaded"
    assert by_version[1].weight_versions == (1,)
    assert str(by_version[2].failure) == "version_gone: version 2 was asked for and is not published; the newest is 1"
    assert wait_for_samples(run, 1)[0].status is Status.COMPLETED
