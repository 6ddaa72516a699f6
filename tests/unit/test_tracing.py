"""Spans that go to a real collector, or can't; and tracing that is off."""

import asyncio
import logging
import pkgutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from rollstream.bus.message import KafkaMessage, OutRecord
from rollstream.bus.tracing import processing, sending
from rollstream.local.ports import free_ports
from rollstream.process.settings.base import Stage, settings_class
from rollstream.process.stop import Stop
from rollstream.process.tracing.begin import require_tracing, tracing_of
from rollstream.process.tracing.context import TraceContext, context_in
from rollstream.process.tracing.export import Drops, Exporting
from rollstream.process.tracing.settings import TracingSettings
from rollstream.process.tracing.spans import DROPPED, EXPORTED, MAX_LINKS, OFF
from rollstream.schemas.errors import ConfigurationError
from tests.harness.otlp_receiver import OtlpReceiver, a_receiver, stop
from tests.harness.waits import wait_until

PARENT = TraceContext(trace_id=0xABC << 100 | 1, span_id=0xDEF, flags=0, tracestate="vendor=x")
MESSAGE = KafkaMessage("demo.prompts", 3, 17, b"group-1", b"value", (*PARENT.headers, ("baggage", b"a=1")))
MAINS = {
    "producer": "rollstream.producers.loop:run_producer",
    "generator": "rollstream.generator.loop:run_generator",
    "scorer": "rollstream.scorer.loop:run_scorer",
    "trainer": "rollstream.trainer.start:run_trainer",
}
REASONS = ("queue_full", "rate", "failed", "shutdown")


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with a_receiver() as made:
        yield made


@pytest.fixture(scope="module")
def by_thirds() -> Iterator[Exporting]:
    """Its spans are never ended, so nothing is sent."""
    with exporting("http://127.0.0.1:1", sample_ratio=0.3) as tracing:
        yield tracing


@contextmanager
def exporting(endpoint: str, *, close_seconds: float = 5.0, **settings: object) -> Iterator[Exporting]:
    made = TracingSettings.model_validate({"endpoint": endpoint, "timeout_seconds": 0.5, **settings})
    tracing = Exporting(made, service="rollstream-test", run="demo", instance="one")
    try:
        yield tracing
    finally:
        tracing.close(close_seconds)


def make_spans(tracing: Exporting, number: int) -> None:
    for _ in range(number):
        tracing.start("work").end()


def counts() -> dict[str, float]:
    return {reason: DROPPED.labels(reason)._value.get() for reason in REASONS} | {"exported": EXPORTED._value.get()}


def since(before: dict[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in counts().items() if value != before[name]}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported_and_no_thread_is_started() -> None:
    code = (
        "import sys, threading\n"
        "import rollstream.stage.loop, rollstream.generator.handler, rollstream.trainer.tracing\n"
        "import rollstream.scorer.batch, rollstream.producers.loop\n"
        "from rollstream.process.tracing.begin import tracing_of\n"
        "from rollstream.process.tracing.settings import TracingSettings\n"
        "with tracing_of(TracingSettings(), stage='generator', run='demo') as tracing:\n"
        "    tracing.start('work').end()\n"
        "    print([name for name in sys.modules if name.startswith('opentelemetry')], threading.active_count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[] 1\n"


def test_without_an_endpoint_records_carry_on_what_came_in() -> None:
    span = processing(OFF, MESSAGE, operation="score", group="demo.scorers")
    assert span.headers == PARENT.headers
    assert (span.is_recorded, span.log_keys) == (False, {})
    hostile = MESSAGE._replace(headers=(("traceparent", b"x" * 10_000), ("tracestate", b"a=1")))
    assert processing(OFF, hostile, operation="score", group="demo.scorers").headers == ()
    record = OutRecord(topic="demo.prompts", value=b"v", headers=(("x", b"y"),))
    with sending(OFF, [record], operation="submit") as records:
        assert list(records) == [record]


def test_a_span_arrives_with_its_place_in_the_trace_and_in_kafka(receiver: OtlpReceiver) -> None:
    submitted = OutRecord(topic="demo.prompts", value=b"v", key=b"group-1")
    with exporting(receiver.endpoint, headers={"Authorization": "Bearer hunter2hunter2"}) as tracing:
        with sending(tracing, [submitted], operation="submit") as (record,):
            assert [name for name, _ in record.headers] == ["traceparent"]
        message = MESSAGE._replace(headers=(("x", b"y"), *record.headers))
        span = processing(tracing, message, operation="generate", group="demo.generators")
        began = datetime.now(UTC)
        child = tracing.start("chat policy", parent=span.context, started_at=began, links=[PARENT])
        child.fail("deadline")
        child.end(began + timedelta(seconds=1.5))
        span.end()
    chat, generate, submit = (receiver.named(name)[0] for name in ("chat", "generate", "submit"))
    assert (submit.parent_id, generate.parent_id, chat.parent_id) == ("", submit.span_id, generate.span_id)
    assert {submit.trace_id, generate.trace_id, chat.trace_id} == {span.log_keys["trace_id"]}
    assert (submit.kind, generate.kind, chat.kind) == ("producer", "consumer", "internal")
    assert (chat.has_failed, chat.attributes) == (True, {"error.type": "deadline"})
    assert chat.seconds == pytest.approx(1.5, abs=1e-3)
    assert chat.links == ((f"{PARENT.trace_id:032x}", f"{PARENT.span_id:016x}"),)
    assert (submit.service, submit.run, submit.has_failed) == ("rollstream-test", "demo", False)
    assert generate.name == "generate demo.prompts"
    assert generate.attributes == {
        "messaging.system": "kafka",
        "messaging.destination.name": "demo.prompts",
        "messaging.operation.name": "generate",
        "messaging.operation.type": "process",
        "messaging.kafka.message.key": "group-1",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 17,
        "messaging.consumer.group.name": "demo.generators",
        "rollstream.group_id": "group-1",
    }
    assert {(path, headers["authorization"]) for path, headers in receiver.requests} == {
        ("/v1/traces", "Bearer hunter2hunter2")
    }


def test_a_record_that_could_not_be_sent_has_a_failed_span(receiver: OtlpReceiver) -> None:
    record = OutRecord(topic="demo.prompts", value=b"v")
    with (
        exporting(receiver.endpoint) as tracing,
        pytest.raises(OSError, match="gone"),
        sending(tracing, [record], operation="submit"),
    ):
        raise OSError("gone")
    (span,) = receiver.spans
    assert (span.has_failed, span.attributes["error.type"]) == (True, "OSError")


def test_what_a_stranger_wrote_makes_no_attribute_long_and_no_span_has_too_many_links(receiver: OtlpReceiver) -> None:
    with exporting(receiver.endpoint) as tracing:
        hostile = MESSAGE._replace(key=b"\xff" * 1_000_000, topic="t" * 249)
        processing(tracing, hostile, operation="generate", group="g").end()
        span = tracing.start("train", links=[PARENT] * (MAX_LINKS + 7))
        span.set({"text": "y" * 10_000})
        span.end()
    generate, train = receiver.spans
    assert len(train.attributes["text"]) == 256
    assert max(len(value) for value in generate.attributes.values() if isinstance(value, str)) <= 256
    assert (len(train.links), train.num_dropped_links) == (MAX_LINKS, 7)


@given(trace_id=st.integers(1, 2**128 - 1), flags=st.integers(0, 255))
def test_our_ratio_alone_decides_what_is_sampled_whatever_the_flags_say(
    by_thirds: Exporting, trace_id: int, flags: int
) -> None:
    context = TraceContext(trace_id, 1, flags)
    is_expected = TraceIdRatioBased(0.3).should_sample(None, trace_id, "").decision.is_sampled()
    assert by_thirds.samples(context) == is_expected
    span = by_thirds.start("work", parent=context)
    assert span.is_recorded == is_expected
    assert span.context is not None
    assert span.context.trace_id == trace_id
    # What is not sampled goes on as it came; what is has its own span.
    assert (span.headers == context.headers) == (not is_expected)


def test_a_trace_that_begins_here_and_is_not_sampled_is_not_sampled_later_either(receiver: OtlpReceiver) -> None:
    with (
        exporting(receiver.endpoint, sample_ratio=0.5) as first,
        exporting(receiver.endpoint, sample_ratio=0.5) as next_,
    ):
        for _ in range(50):
            span = first.start("submit")
            later = next_.start("generate", parent=context_in(span.headers))
            assert span.is_recorded == later.is_recorded
            assert span.log_keys["trace_id"] == later.log_keys["trace_id"]
            assert (span.headers == later.headers) == (not span.is_recorded)
        step = next_.start("train", is_always_sampled=True)
        assert step.is_recorded


@pytest.mark.parametrize("status", [302, 400, 401, 503])
def test_spans_that_the_collector_does_not_take_are_counted_and_said_once(
    receiver: OtlpReceiver, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = status
    before = counts()
    with exporting(receiver.endpoint, headers={"x-key": "hunter2hunter2"}) as tracing:
        make_spans(tracing, 3)
        wait_until(lambda: since(before) == {"failed": 3}, "three failed spans")
        make_spans(tracing, 4)
    assert since(before) == {"failed": 7}
    assert warnings(caplog) == [f"spans were dropped since the last such line: failed 3 (HTTP {status})"]


def test_without_a_collector_spans_are_counted_and_the_end_is_quick(caplog: pytest.LogCaptureFixture) -> None:
    before, (port,) = counts(), free_ports(1)
    with exporting(f"http://127.0.0.1:{port}") as tracing:
        make_spans(tracing, 600)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert since(before) == {"failed": 600}
    assert len(warnings(caplog)) == 1
    assert "ConnectionError" in warnings(caplog)[0]


def test_a_collector_that_never_answers_holds_up_nobody_and_fills_no_memory(receiver: OtlpReceiver) -> None:
    receiver.answering.clear()
    before = counts()
    with exporting(receiver.endpoint, timeout_seconds=30, max_queued_spans=10, close_seconds=0.5) as tracing:
        began = time.monotonic()
        make_spans(tracing, 500)
        assert time.monotonic() - began < 5
        assert since(before) == {"queue_full": 490}
        began = time.monotonic()
    assert 0.4 < time.monotonic() - began < 5
    assert since(before) == {"queue_full": 490, "shutdown": 10}
    tracing.start("late").end()
    assert since(before) == {"queue_full": 490, "shutdown": 11}


def test_no_more_spans_a_second_are_exported_than_allowed(receiver: OtlpReceiver) -> None:
    before = counts()
    with exporting(receiver.endpoint, max_spans_per_second=20) as tracing:
        began = time.monotonic()
        make_spans(tracing, 500)
        allowed = 20 + 20 * (time.monotonic() - began)
    found = since(before)
    assert 20 <= found["exported"] <= allowed + 1
    assert found["exported"] == len(receiver.spans) == 500 - found["rate"]


def test_dropped_spans_are_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    drops = Drops(clock=lambda: now[0])
    for second in range(119):
        now[0] = float(second)
        drops.count("rate", 2)
    drops.count("failed", 0)
    now[0] = 120.0
    drops.count("failed", 1, "HTTP 500")
    assert [line.partition(": ")[2] for line in warnings(caplog)] == [
        "rate 2",
        "rate 120",
        "rate 116, failed 1 (HTTP 500)",
    ]


def test_spans_go_on_after_a_collector_was_away(receiver: OtlpReceiver) -> None:
    receiver.status = 503
    before = counts()
    with exporting(receiver.endpoint) as tracing:
        make_spans(tracing, 1)
        wait_until(lambda: since(before) == {"failed": 1}, "a failed span")
        receiver.status = 200
        make_spans(tracing, 2)
        wait_until(lambda: since(before) == {"failed": 1, "exported": 2}, "two spans")


def test_code_of_a_user_may_fork_a_traced_process_and_each_sends_only_its_own_spans(receiver: OtlpReceiver) -> None:
    code = (
        "import os, sys\n"
        "from rollstream.process.tracing.begin import tracing_of\n"
        "from rollstream.process.tracing.settings import TracingSettings\n"
        "with tracing_of(TracingSettings(endpoint=sys.argv[1]), stage='generator', run='demo') as tracing:\n"
        "    tracing.start('parent').end()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        tracing.start('child').end()\n"
        "    else:\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code, receiver.endpoint], check=True, timeout=60)
    assert sorted(span.name for span in receiver.spans) == ["child", "parent"]


def run_stage(stage: Stage, config: Path) -> None:
    main: Callable[..., Any] = pkgutil.resolve_name(MAINS[stage])
    outcome = main(settings_class(stage).load(config), Stop())
    if outcome is not None:
        asyncio.run(outcome)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TracingSettings(endpoint="http://127.0.0.1:4318")
    require_tracing(settings)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ConfigurationError, match=r"opentelemetry\.sdk is not installed: install rollstream\[tracing\]"):
        require_tracing(settings)
    require_tracing(TracingSettings())


@pytest.mark.parametrize("stage", MAINS)
def test_each_stage_refuses_at_its_start_what_it_could_not_export_by(stage: Stage, tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(
        f'run = "demo"\n[tracing]\nendpoint = "https://collector"\nca_file = "{tmp_path}/ca.pem"\n'
        '[producer]\nenvironment = "sort_digits"\n[generator.engine]\nkind = "scripted"\nmodel_path = "model"\n'
        '[trainer]\nmodel_path = "model"\n'
    )
    with pytest.raises(ConfigurationError, match=r"ca_file .*ca\.pem can't be read: No such file"):
        run_stage(stage, config)


def test_the_sdk_can_be_disabled_by_its_own_variable(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    settings = TracingSettings(endpoint=receiver.endpoint)
    with tracing_of(settings, stage="scorer", run="demo") as tracing:
        span = tracing.start("work", parent=PARENT)
        assert span.headers == PARENT.headers
        span.end()
        assert tracing.start("work").headers == ()
    assert receiver.requests == []


def test_a_stopped_stage_leaves_no_thread_behind(receiver: OtlpReceiver) -> None:
    before = set(threading.enumerate())
    with exporting(receiver.endpoint) as tracing:
        make_spans(tracing, 1)
        stop(receiver)
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if "pan" in t.name], "its threads to end")
