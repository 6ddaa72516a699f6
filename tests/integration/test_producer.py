"""The producer on a real broker: credit by id, restarts, cuts, shares."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from rollstream.bus.reader import TopicReader
from rollstream.producers.numbering import RowPlace, numbered_rows, prompt_of_row
from rollstream.producers.sources.build import build_source, sampling_of
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import ConfigurationError, FencedError
from rollstream.schemas.ledger import EntryKind, SkippedRecord
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.topics import LEDGER, PRODUCERS, PROMPTS, SERVE_PROMPTS
from tests.harness.builders import a_prompt, an_entry
from tests.harness.forking import start_command
from tests.harness.processes import StartedProcess
from tests.harness.producer_runs import DEADLINE_SECONDS, Run, RunningProducer, producing
from tests.harness.waits import wait_until


@pytest.fixture
def run(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(kafka, topic_prefix, tmp_path)
    yield made
    made.publisher.close()
    made.reader.close()


def test_exactly_the_share_is_submitted_and_closing_buys_the_next(run: Run) -> None:
    with producing(run.settings(share=5)):
        run.wait_for(5)
        run.step(*run.groups()[:2], "a group of somebody else")
        run.wait_for(7)
        run.write(EntryKind.DROPS, run.groups()[2], parent=None)
        run.wait_for(8)
    assert [prompt.sequence for prompt in sorted(run.prompts, key=lambda p: p.sequence)] == list(range(8))
    assert {prompt.purpose for prompt in run.prompts} == {"train"}


def test_credit_and_place_of_a_producer_are_exported(run: Run) -> None:
    def exported(name: str) -> float | None:
        return REGISTRY.get_sample_value(f"rollstream_producer_{name}")

    submitted = exported("prompts_submitted_total") or 0.0
    with producing(run.settings(share=13)):
        run.wait_for(13)
        run.step(*run.groups()[:4])
        run.wait_for(17)
        wait_until(lambda: exported("sequence") == 17, "the place to be exported", DEADLINE_SECONDS)
        assert exported("outstanding_groups") == exported("credit_share_groups") == 13
        assert exported("prompts_submitted_total") == submitted + 17


def test_a_cut_reopens_groups_and_nothing_is_submitted_until_they_close_again(run: Run) -> None:
    with producing(run.settings(share=4)):
        run.wait_for(4)
        run.step(*run.groups()[:2])
        run.wait_for(6)
        run.write(EntryKind.RESTART, parent=0)
        run.step(*run.groups()[:2])
        run.wait_for(6)
        run.step(run.groups()[2])
        run.wait_for(7)


def test_two_producers_keep_to_their_own_shares(run: Run) -> None:
    with producing(run.settings(name="one", share=2)), producing(run.settings(name="two", share=3)):
        run.wait_for(5)
        assert Counter(prompt.producer for prompt in run.prompts) == {"one": 2, "two": 3}
        run.step(run.groups("one")[0])
        run.wait_for(6)
    assert Counter(prompt.producer for prompt in run.prompts) == {"one": 3, "two": 3}


def test_a_finite_producer_ends_when_its_last_group_is_closed(run: Run) -> None:
    with producing(run.settings(rows=3, epochs=2, share=10)) as producer:
        run.wait_for(6)
        assert producer.runs
        run.step(*run.groups())
        producer.wait()
    assert set(Counter(prompt.prompt_id for prompt in run.prompts).values()) == {2}
    assert {prompt.source.row for prompt in run.prompts} == {0, 1, 2}
    assert len(set(run.groups())) == 6


def test_a_producer_that_need_not_wait_ends_when_everything_is_submitted(run: Run) -> None:
    with producing(run.settings(num_prompts=3, wait_until_closed=False)) as producer:
        producer.wait()
    run.wait_for(3)


def test_a_row_that_no_record_can_hold_ends_it_as_a_mistake_of_the_settings_that_names_the_row(run: Run) -> None:
    settings = run.settings(rows=2)
    with settings.path.open("a") as file:
        file.write(json.dumps({"prompt": "7" * 7_000_000}) + "\n")
    producer = RunningProducer(settings)
    producer.wait()
    assert isinstance(producer.error, ConfigurationError)
    assert "row 2 of tasks.jsonl" in str(producer.error)
    assert "the limit is" in str(producer.error)


def test_prompts_that_are_not_for_training_have_a_topic_of_their_own_use_no_credit_and_are_submitted_once(
    run: Run,
) -> None:
    for _ in range(2):
        with producing(run.settings(rows=9, epochs=1, purpose="serve", share=1)) as producer:
            producer.wait()
    with TopicReader(run.kafka, [SERVE_PROMPTS.of(run.name)]) as reader:
        served = [AvroCodec(SERVE_PROMPTS).decode(message.value) for message in reader.to_end()]
    assert sorted(prompt.sequence for prompt in served) == [*range(9)]
    assert {prompt.purpose for prompt in served} == {Purpose.SERVE}
    run.wait_for(0)


@pytest.mark.parametrize("first", ["train", "serve"])
def test_a_source_has_one_producer_whatever_its_prompts_are_for(run: Run, first: str) -> None:
    (second,) = {"train", "serve"} - {first}
    usual = {"rows": 9, "epochs": 1, "wait_until_closed": False}
    with producing(run.settings(**usual, purpose=first, name="tasks")) as producer:
        producer.wait()
    settings = run.settings(**usual, purpose=second, name="tasks")
    refused = RunningProducer(settings.model_copy(update={"name": "other"}))
    refused.wait()
    assert "producer 'tasks' has had the source" in str(refused.error)


def test_what_somebody_else_put_on_the_topics_does_not_stop_it(run: Run) -> None:
    run.put(PROMPTS.of(run.name), b"garbage")
    run.put(LEDGER.of(run.name), b"garbage")
    run.put(PRODUCERS.of(run.name), b"garbage")
    settings = run.settings(rows=6, num_prompts=6, wait_until_closed=False)
    theirs = a_prompt(run=run.name, producer="outside", prompt_id=f"{build_source(settings).dataset}/4")
    run.put(PROMPTS.of(run.name), AvroCodec(PROMPTS).encode(theirs))
    with producing(settings) as producer:
        producer.wait()
    run.wait_for(7)
    assert len(set(run.groups())) == 6


def test_a_strangers_prompt_in_its_name_leaves_no_row_out_and_uses_no_credit(run: Run) -> None:
    settings = run.settings(rows=8, share=2)
    with producing(settings):
        run.wait_for(2)
        first = run.groups()
        run.step(*first, checkpoint="checkpoint-0")
        run.wait_for(4)
        for number in range(2):
            run.step(*run.groups()[2 + number : 3 + number], checkpoint=f"checkpoint-{number + 1}")
        run.wait_for(6)
    submitted = run.groups()
    replayed = next(prompt for prompt in run.prompts if prompt.group_id == first[0])
    strangers = [a_prompt(run=run.name, producer="producer", prompt_id=f"x/{n}", sequence=n) for n in (6, 2**40)]
    counted = REGISTRY.get_sample_value("rollstream_producer_strangers_prompts_total") or 0.0
    for prompt in (replayed, *strangers):
        run.put(PROMPTS.of(run.name), AvroCodec(PROMPTS).encode(prompt))
    with producing(settings):
        run.wait_for(9)
        run.step(*submitted[4:])
        run.wait_for(11)
    assert REGISTRY.get_sample_value("rollstream_producer_strangers_prompts_total") == counted + len(strangers)
    own = {prompt.sequence: prompt for prompt in run.prompts if prompt not in strangers}
    assert sorted(own) == list(range(8))
    assert {prompt.source.row for prompt in own.values()} == set(range(8))


def test_a_contradicting_entry_ends_no_producer_and_a_repair_gives_its_credit_back(run: Run) -> None:
    with producing(run.settings(share=2)):
        run.wait_for(2)
        run.step("a stranger's entry, which fits", *run.groups())
        run.wait_for(4)
        run.version -= 1
        run.step(run.groups()[0])  # the trainer's own contradicts it
        run.wait_for(4)
        forged = SkippedRecord(topic="ledger", partition=0, offset=1)
        run.put_entry(an_entry(EntryKind.SKIP, weight_version=run.version, step=0, skipped=(forged,)))
        # One of four groups is closed: three are open, of which the share allows two.
        run.wait_for(4)
        run.step(*run.groups()[1:])
        run.wait_for(6)


def test_what_a_kill_left_out_of_a_batch_is_submitted(run: Run) -> None:
    settings = run.settings(rows=5, num_prompts=5, wait_until_closed=False)
    source = build_source(settings)
    for row in numbered_rows(source, RowPlace(), stop_before=4):
        if row.place.sequence != 2:
            prompt = prompt_of_row(row, settings=settings, dataset=source.dataset, sampling=sampling_of(settings))
            run.put(PROMPTS.of(run.name), AvroCodec(PROMPTS).encode(prompt))
    with producing(settings) as producer:
        producer.wait()
    run.wait_for(5)
    assert sorted(prompt.sequence for prompt in run.prompts) == list(range(5))
    assert len(set(run.groups())) == 5


def test_a_producer_that_slept_longer_than_prompts_are_kept_repeats_nothing(run: Run) -> None:
    settings = run.settings(share=5)
    with producing(settings):
        run.wait_for(5)
        run.step(*run.groups()[:2])
        run.wait_for(7)
    run.let_prompts_expire()
    with producing(settings):
        run.wait_for(7)
        run.step(run.groups()[2])
        run.wait_for(8)
    assert sorted(prompt.sequence for prompt in run.prompts) == list(range(8))
    assert len(set(run.groups())) == 8


def test_a_rollback_beyond_what_a_restarted_producer_remembers_opens_the_groups_again(run: Run) -> None:
    settings = run.settings(share=4)
    with producing(settings):
        run.wait_for(4)
        for number in range(3):
            run.step(run.groups()[number], checkpoint=f"checkpoint-{number}")
        run.wait_for(7)
    with producing(settings):
        run.write(EntryKind.ROLLBACK, parent=0)
        run.step(*run.groups()[:3])
        run.wait_for(7)
        run.step(run.groups()[3])
        run.wait_for(8)


def test_a_second_producer_of_a_source_refuses_and_submits_nothing(run: Run) -> None:
    settings = run.settings(name="one", share=2)
    with producing(settings):
        run.wait_for(2)
        second = RunningProducer(run.settings(name="two", share=2, path=settings.path))
        second.wait()
        assert isinstance(second.error, ConfigurationError)
        assert "Set name = 'one' to go on where it is" in str(second.error)
        run.wait_for(2)


def test_a_second_process_of_a_producer_takes_over_and_the_first_ends(run: Run) -> None:
    settings = run.settings(share=3)
    first = RunningProducer(settings)
    run.wait_for(3)
    with producing(settings):
        first.wait()
        assert isinstance(first.error, FencedError)
        run.step(run.groups()[0])
        run.wait_for(4)
    assert len(set(run.groups())) == 4


def started(config: Path) -> StartedProcess:
    return start_command("producer", "--config", str(config), log=config.with_name("producer.log"))


def test_killed_and_started_again_it_goes_on_without_a_second_group(run: Run) -> None:
    settings = run.settings(share=5)
    config = run.directory / "rollstream.toml"
    config.write_text(
        f'run = "{run.name}"\n[kafka]\nbootstrap_servers = "{run.kafka.bootstrap_servers}"\n'
        f'[producer]\nsource = "jsonl"\npath = "{settings.path}"\nshare = 5\n'
    )
    first = started(config)
    second = None
    try:
        wait_until(lambda: run.poll() or len(run.prompts) >= 5, "the first 5 prompts", DEADLINE_SECONDS)
        first.kill()
        run.step(*run.groups()[:3])
        second = started(config)
        run.wait_for(8)
        assert [prompt.sequence for prompt in sorted(run.prompts, key=lambda p: p.sequence)] == list(range(8))
        assert len(set(run.groups())) == 8
        assert second.terminate() == 0
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
