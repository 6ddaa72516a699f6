"""A producer with a curriculum on a real broker: kills, shuffled files, data of which nothing is learned."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollstream.bus.message import OutRecord
from rollstream.bus.reader import TopicReader
from rollstream.process.crash_points import CRASH_AT
from rollstream.process.health import Health
from rollstream.producers.curriculum import Curriculum
from rollstream.producers.loop import Producer
from rollstream.producers.numbering import read_mark
from rollstream.producers.settings import CurriculumSettings, ProducerSettings
from rollstream.producers.sources.build import build_source, sampling_of
from rollstream.producers.sources.identity import file_identity
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.topics import PRODUCERS
from tests.harness.builders import an_entry
from tests.harness.forking import start_command
from tests.harness.processes import StartedProcess
from tests.harness.producer_runs import DEADLINE_SECONDS, Run, RunningProducer, producing
from tests.harness.waits import wait_until

NUM_TASKS = 12
SHARE = 3
NAMES = [f"task-{number}" for number in range(NUM_TASKS)]


@contextmanager
def a_run(kafka: str, name: str, directory: Path) -> Iterator[Run]:
    directory.mkdir(exist_ok=True)
    made = Run(kafka, name, directory)
    try:
        yield made
    finally:
        made.publisher.close()
        made.reader.close()


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    with a_run(kafka, topic_prefix, tmp_path) as made:
        yield made


def a_file(path: Path, names: Sequence[str] = NAMES) -> Path:
    path.write_text("".join(json.dumps({"id": name, "prompt": f"{name}="}) + "\n" for name in names))
    return path


def settings_of(run: Run, path: Path, **fields: object) -> ProducerSettings:
    return run.settings(**{"path": path, "share": SHARE, "curriculum": CurriculumSettings(), **fields})


def task(prompt: PromptSubmitted) -> str:
    return prompt.prompt_id.rpartition("/")[2]


def mean_of(name: str) -> float:
    """Every third task is easy, the next one normal, the next one hard."""
    return 1.0 - NAMES.index(name) % 3 / 2


def close(run: Run, prompts: Sequence[PromptSubmitted], mean: float | None = None) -> None:
    """The trainer's entry that closes these groups."""
    closed = tuple(
        ClosedGroup(
            group_id=prompt.group_id,
            outcome=GroupOutcome.DROPPED,
            reason="no_spread",
            reward_mean=mean_of(task(prompt)) if mean is None else mean,
        )
        for prompt in prompts
    )
    run.put_entry(an_entry(kind=EntryKind.DROPS, weight_version=run.version, step=0, closed=closed))


def wait_for_open(run: Run, num_closed: int) -> list[PromptSubmitted]:
    """The prompts of the open groups, once the whole share is open."""
    wait_until(lambda: run.poll() or len(run.prompts) >= num_closed + SHARE, "the share to be open", DEADLINE_SECONDS)
    return sorted(run.prompts, key=lambda prompt: prompt.sequence)[num_closed:]


def answered(run: Run, num_groups: int, *, num_before: int = 0) -> None:
    """Close so many groups as they come, until the share is open again."""
    for num_closed in range(num_before, num_before + num_groups, SHARE):
        close(run, wait_for_open(run, num_closed))
    wait_for_open(run, num_before + num_groups)


def story(
    run: Run, path: Path, num_groups: int, *, kill_after: Sequence[int] = (), crash_at: str = ""
) -> list[tuple[str, int]]:
    """Which task was posed in which epoch; the producer is killed once so many groups have closed, or at a place."""
    config = run.directory / "rollstream.toml"
    config.write_text(
        f'run = "{run.name}"\n[kafka]\nbootstrap_servers = "{run.kafka.bootstrap_servers}"\n'
        f'[producer]\nsource = "jsonl"\npath = "{path}"\nshare = {SHARE}\ngroup_size = 2\n[producer.curriculum]\n'
    )

    def start(**env: str) -> StartedProcess:
        return start_command("producer", "--config", str(config), log=run.directory / "producer.log", env=env)

    producer = start(**{CRASH_AT: crash_at})
    try:
        for num_closed in range(0, num_groups, SHARE):
            close(run, wait_for_open(run, num_closed))
            if num_closed in kill_after:
                # One that is to crash does so at the next batch.
                producer.wait() if crash_at else producer.kill()
                producer = start()
        wait_for_open(run, num_groups)
        assert producer.terminate() == 0
    finally:
        producer.kill()
    ordered = sorted(run.prompts, key=lambda prompt: prompt.sequence)
    assert [prompt.sequence for prompt in ordered] == list(range(len(ordered)))
    return [(task(prompt), prompt.source.epoch) for prompt in ordered]


def newest(run: Run) -> ProducerProgress:
    with TopicReader(run.kafka, [PRODUCERS.of(run.name)]) as reader:
        return [AvroCodec(PRODUCERS).decode(message.value) for message in reader.to_end()][-1]


def pools_in(record: ProducerProgress, path: Path) -> dict[str, str]:
    """The pool of each task, by what the record says."""
    curriculum = Curriculum(CurriculumSettings(), [f"id {name}" for name in NAMES], seed=0)
    mark = read_mark(record.mark)
    assert mark is not None
    assert curriculum.restore(record.curriculum, file_identity(path), mark.of_pass)
    return {name: curriculum.pool_of(f"id {name}") for name in NAMES}


@pytest.mark.usefixtures("forks")
def test_a_killed_producer_poses_what_one_that_was_never_killed_poses(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    path, num_groups = a_file(tmp_path / "own.jsonl"), 13 * SHARE
    with a_run(kafka, f"{topic_prefix}-a", tmp_path / "a") as run:
        whole = story(run, path, num_groups)
    with a_run(kafka, f"{topic_prefix}-b", tmp_path / "b") as run:
        killed = story(run, path, num_groups, kill_after=(0, 9, 12, 24, 33))
    with a_run(kafka, f"{topic_prefix}-c", tmp_path / "c") as run:
        # The second batch of the second pass is submitted, and not noted. The first pass has four batches.
        crashed = story(run, path, num_groups, kill_after=(12,), crash_at="batch_submitted:6")
    assert killed == crashed == whole
    assert len(set(whole)) == len(whole), "no task comes twice in an epoch"
    first, *others = ([name for name, epoch in whole if epoch == number] for number in range(whole[-1][1]))
    assert sorted(first) == sorted(NAMES)
    # From the second pass on every normal task is posed, and few of the others.
    for names in others:
        assert {name for name in NAMES if mean_of(name) == 0.5} <= set(names)
        assert len(names) < NUM_TASKS


def test_a_shuffled_file_gives_the_same_assignment(run: Run, tmp_path: Path) -> None:
    path = a_file(tmp_path / "one.jsonl")
    with producing(settings_of(run, path)):
        answered(run, 2 * NUM_TASKS)
    pools = pools_in(newest(run), path)
    assert pools == {name: {0.0: "hard", 0.5: "normal", 1.0: "easy"}[mean_of(name)] for name in NAMES}
    num_before = len(run.prompts)
    close(run, wait_for_open(run, 2 * NUM_TASKS))
    shuffled = a_file(tmp_path / "other.jsonl", random.Random(3).sample(NAMES, NUM_TASKS))
    with producing(settings_of(run, shuffled)):
        wait_for_open(run, num_before)
    assert pools_in(newest(run), shuffled) == pools


def forge(run: Run, record: ProducerProgress) -> None:
    """Write it under its producer's key, as that producer would."""
    value = AvroCodec(PRODUCERS).encode(record)
    run.publisher.publish_soon(
        OutRecord(topic=PRODUCERS.of(run.name), key=record.producer.encode(), value=value)
    ).result(DEADLINE_SECONDS)


def test_a_stranger_who_names_another_source_costs_neither_the_pass_nor_the_pools(run: Run, tmp_path: Path) -> None:
    path = a_file(tmp_path / "own.jsonl")
    with producing(settings_of(run, path)):
        answered(run, NUM_TASKS + SHARE)
    true = newest(run)
    forge(run, true.model_copy(update={"source": "stranger.jsonl@5891b5b522d5", "mark": "0/0", "curriculum": None}))
    with producing(settings_of(run, path)):
        pass
    after = newest(run)
    assert (after.source, after.mark, after.curriculum) == (true.source, true.mark, true.curriculum)


def test_tasks_of_the_source_that_were_never_posed_use_no_credit(run: Run, tmp_path: Path) -> None:
    path = a_file(tmp_path / "own.jsonl")
    with producing(settings_of(run, path)):
        answered(run, NUM_TASKS + SHARE)
    true = newest(run)
    mark = read_mark(true.mark)
    assert mark is not None
    assert mark.of_pass is not None
    of_pass = {group_id(run.name, prompt.prompt_id, mark.of_pass.epoch) for prompt in run.prompts}
    ghosts = of_pass - {prompt.group_id for prompt in run.prompts}
    assert len(ghosts) >= SHARE
    forge(run, true.model_copy(update={"open_groups": (*true.open_groups, *sorted(ghosts))}))
    with producing(settings_of(run, path)):
        answered(run, SHARE, num_before=NUM_TASKS + SHARE)
    # Those that are open stay so, where nothing but the source tells that they are real.
    run.let_prompts_expire()
    with producing(settings_of(run, path)):
        run.wait_for(NUM_TASKS + 3 * SHARE)


def test_without_the_curriculum_every_task_comes_again_and_none_twice_in_an_epoch(run: Run, tmp_path: Path) -> None:
    path = a_file(tmp_path / "own.jsonl")
    with producing(settings_of(run, path)):
        answered(run, NUM_TASKS + SHARE)
    close(run, wait_for_open(run, NUM_TASKS + SHARE))
    num_before = NUM_TASKS + 2 * SHARE
    for _ in range(2):
        with producing(settings_of(run, path, curriculum=None)):
            answered(run, NUM_TASKS - SHARE, num_before=num_before)
        close(run, wait_for_open(run, num_before + NUM_TASKS - SHARE))
        num_before += NUM_TASKS
    posed = [(task(prompt), prompt.source.epoch) for prompt in run.prompts]
    assert len(set(posed)) == len(posed)
    for epoch in sorted({epoch for _, epoch in posed})[-2:]:
        assert sorted(name for name, of_epoch in posed if of_epoch == epoch) == sorted(NAMES)


def test_data_that_are_all_easy_end_in_a_report_and_spin_nowhere(run: Run, tmp_path: Path) -> None:
    producer = RunningProducer(settings_of(run, a_file(tmp_path / "own.jsonl"), most_flat_groups=30))
    for num_closed in range(0, 30, SHARE):
        close(run, wait_for_open(run, num_closed), mean=1.0)
    producer.wait()
    assert isinstance(producer.error, ConfigurationError)
    for named in ("last 30 groups", "1.000 on average", f"easy {NUM_TASKS}", "unseen 0", "most_flat_groups = 30"):
        assert named in str(producer.error)
    run.poll()
    assert len(run.prompts) <= 30 + SHARE


@pytest.mark.parametrize(("bound", "num_prompts"), [({"epochs": 2}, 2 * NUM_TASKS), ({"num_prompts": 17}, 17)])
def test_a_finite_number_of_passes_or_prompts_ends(
    bound: dict[str, int], num_prompts: int, run: Run, tmp_path: Path
) -> None:
    path = a_file(tmp_path / "own.jsonl")
    with producing(settings_of(run, path, share=100, groups_per_step=20, **bound)) as producer:
        wait_until(lambda: run.poll() or len(run.prompts) == num_prompts, "all prompts")
        close(run, run.prompts)
        producer.wait()


def test_an_endless_source_has_no_curriculum() -> None:
    settings = ProducerSettings(run="demo", environment="sort_digits", curriculum=CurriculumSettings())
    source = build_source(settings)
    with pytest.raises(ConfigurationError, match="endless"):
        Producer(settings, source, sampling=sampling_of(settings), health=Health())
