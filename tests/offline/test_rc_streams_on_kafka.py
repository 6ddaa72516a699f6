"""Streams on Kafka: the same groups as in files, bad messages, other instances, sizes, and going on from a position."""

from pathlib import Path
from threading import Thread

import pytest

from rollstream.bus.message import OutRecord
from rollstream.bus.run import Run
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.process.stop import Stop
from rollstream.rc_actor.file_streams import FileStreams
from rollstream.rc_actor.kafka_streams import KafkaStreams
from rollstream.rc_actor.lines import SingleStreamSpec, StreamRangeSpec
from rollstream.rc_actor.streams import read_stream, write_to_streams
from rollstream.rc_actor.texts import texts_of
from rollstream.schemas.errors import ConfigurationError, RecordTooLargeError
from rollstream.schemas.topics import MAX_RECORD_BYTES
from tests.harness.builders import a_generated
from tests.harness.cycles import OPTIONS, cycle_turns, scored_by_turns
from tests.harness.waits import wait_until


@pytest.fixture
def run(kafka: str, topic_prefix: str) -> Run:
    found = Run(StageSettings(run=topic_prefix, kafka=KafkaSettings(bootstrap_servers=kafka)))
    found.admin().create_topics(topic_prefix, partitions=2, with_streams=True)
    return found


@pytest.fixture
def spec(tmp_path: Path) -> SingleStreamSpec:
    return SingleStreamSpec(tmp_path, "rc_actor")


def test_the_same_group_reads_back_equal_from_files_and_kafka(run: Run, spec: SingleStreamSpec) -> None:
    scoring = scored_by_turns({0: 0.0, 2: None, 4: 1.0})
    group = texts_of(a_generated(turns=cycle_turns(3)), scoring, OPTIONS, with_resume_state=True)
    found = []
    for backend in (FileStreams(), KafkaStreams(run)):
        with write_to_streams(spec, backend=backend) as writer:
            writer.write(group)
        with read_stream(spec, backend=backend) as reader:
            found.append(list(reader.groups()))
    assert found == [[group], [group]]


def test_a_bad_message_is_named_and_counted_and_other_instances_are_passed_over(
    run: Run, spec: SingleStreamSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = KafkaStreams(run)
    with write_to_streams(spec, backend=backend) as writer:
        writer.write(["a"])
    with run.publisher("stranger") as publisher:
        for value in (b"[1,", None):
            publisher.publish_soon(OutRecord(topic=f"{run.name}.rc_actor", key=b"0", value=value, partition=0)).result(
                20
            )
    with write_to_streams(StreamRangeSpec(tmp_path, "rc_actor", 1, (0, 2)), backend=backend) as writer:
        writer.write(["other instance"])
        writer.write(["other partition"])
    with write_to_streams(spec, backend=backend) as writer:
        writer.write(["b"])
    with read_stream(spec, backend=backend) as reader:
        assert list(reader.read()) == [["a"], ["b"]]
    assert reader.bad == {"it is no valid JSON": 1, "it can't be read as a line": 1}
    assert f"{run.name}.rc_actor/0 offset 1: it is not valid JSON" in caplog.text
    with read_stream(SingleStreamSpec(tmp_path, "rc_actor", 1, 1), backend=backend) as reader:
        assert list(reader.read()) == [["other partition"]]


def test_a_reader_goes_on_from_a_position_and_follows_until_it_is_asked_to_stop(
    run: Run, spec: SingleStreamSpec
) -> None:
    backend, stop, found = KafkaStreams(run), Stop(), list[object]()
    with write_to_streams(spec, backend=backend) as writer:
        after_first = writer.write(["a"])
        writer.write(["b"])

        def follow() -> None:
            with read_stream(spec, start=after_first, follows=stop, backend=backend) as reader:
                for value in reader.read():
                    found.append(value)

        thread = Thread(target=follow, daemon=True)
        thread.start()
        wait_until(lambda: found == [["b"]], "what lies there")
        writer.write(["c"])
        wait_until(lambda: found == [["b"], ["c"]], "what comes")
    stop.ask()
    wait_until(lambda: not thread.is_alive(), "its end")


def test_a_group_above_the_topics_bound_is_refused_and_the_next_is_written(run: Run, spec: SingleStreamSpec) -> None:
    with write_to_streams(spec, backend=KafkaStreams(run), max_entry_bytes=2**31) as writer:
        with pytest.raises(RecordTooLargeError, match=f"group 7 has .* the bound is {MAX_RECORD_BYTES}: ask"):
            writer.write(["x" * MAX_RECORD_BYTES], key="group 7")
        # Hardly below the bound, as Kafka may not make it smaller.
        writer.write(["x" * (MAX_RECORD_BYTES - 100)])


def test_what_kafka_does_not_have_is_refused_with_what_to_change(run: Run, tmp_path: Path) -> None:
    backend = KafkaStreams(run)
    for spec, mode, why in (
        (SingleStreamSpec(tmp_path, "actor"), "a", "no stream 'actor' on Kafka: there are rc_actor, "),
        (SingleStreamSpec(tmp_path, "rc_stats", partition=2), "a", "has 2 partitions, and the stream has number 2"),
        (SingleStreamSpec(tmp_path, "rc_stats"), "w", "can't be begun anew"),
    ):
        with pytest.raises(ConfigurationError, match=why), write_to_streams(spec, mode, backend=backend):  # type: ignore[arg-type]
            pass
