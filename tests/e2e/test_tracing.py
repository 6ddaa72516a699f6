"""Spans of a whole run, as a real collector gets them from the four stages, and what becomes of a run without it."""

import json
import re
import time
import uuid
from pathlib import Path

from rollstream.local.ports import free_ports
from tests.chaos.records import encoded_prompt
from tests.harness.loops import STAGES, Loop, a_loop
from tests.harness.otlp_receiver import OtlpReceiver, SeenSpan, a_receiver, stop
from tests.harness.running import Run
from tests.harness.scraping import scraped

OUTSIDE_TRACE, OUTSIDE_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OUTSIDE = {"traceparent": f"00-{OUTSIDE_TRACE}-{OUTSIDE_SPAN}-00", "tracestate": "vendor=x", "baggage": "a=1"}
HOSTILE = {"traceparent": "00-" + "f" * 100_000, "tracestate": "x" * 100_000}
MOST_HEADER_BYTES = 700
TOKEN = "Bearer hunter2hunter2"


def test_a_trace_leads_from_the_submission_to_the_step_and_a_run_goes_on_without_the_collector(
    run: Run, model: Path
) -> None:
    with a_receiver() as receiver, a_loop(run, model, token_seconds=0.02) as loop:
        ports = dict(zip(STAGES, free_ports(len(STAGES)), strict=True))
        for stage, port in ports.items():
            run.tables[stage] = {**run.tables.get(stage, {}), "health_port": port}
        run.tables["tracing"] = {
            "endpoint": receiver.endpoint,
            "headers": {"authorization": TOKEN},
            "timeout_seconds": 1.0,
        }
        served, hostile = put_strangers(loop)
        loop.start()
        loop.until_account(lambda account: {served, hostile} <= account.closed.keys(), "the outside groups to close")
        loop.until_step(3)
        step = loop.until(lambda: whole_step(receiver), "a step whose groups' traces are whole")
        for trace_id, score_id in step.links:
            check_trace_of_sample(receiver.trace(trace_id), score_id, step, run.name)
        loop.until(lambda: len(receiver.trace(OUTSIDE_TRACE)) == 7, "the whole outside trace")
        check_outside_trace(receiver.trace(OUTSIDE_TRACE))
        check_headers(run)
        check_attributes_hold_no_text(receiver, loop)
        check_logs(run, loop)
        assert {headers["authorization"] for _, headers in receiver.requests} == {TOKEN}

        stop(receiver)
        stopped_at = time.monotonic()
        loop.until_step(loop.outside.steps() + 2)
        for stage, port in ports.items():
            loop.until(lambda port=port: num_dropped(port) > 0, f"dropped spans of the {stage}")
        check_end(loop, time.monotonic() - stopped_at)


def put_strangers(loop: Loop) -> tuple[str, str]:
    """Prompts of an outside client with a trace of its own, and with headers that would hurt; and garbage."""
    served, hostile = uuid.uuid4().hex, uuid.uuid4().hex
    for group, headers in ((served, OUTSIDE), (hostile, HOSTILE)):
        prompt = encoded_prompt("31=", group_id=group, environment="sort_digits", reference_answer="13", group_size=2)
        loop.outside.put("prompts", prompt, key=group.encode(), headers=headers)
    loop.outside.put("prompts", b"garbage", headers=OUTSIDE)
    return served, hostile


def whole_step(receiver: OtlpReceiver) -> SeenSpan | None:
    """A step, once all spans of its samples came; each stage sends on its own."""
    for step in receiver.named("train"):
        if step.links and all(is_whole(receiver.trace(trace), step) for trace, _ in step.links):
            return step
    return None


def is_whole(spans: list[SeenSpan], step: SeenSpan) -> bool:
    names = [span.operation for span in spans]
    is_closed = any(span.links == ((step.trace_id, step.span_id),) for span in spans if span.operation == "close")
    return is_closed and {"submit", "generate", "chat", "score"} <= set(names)


def check_trace_of_sample(spans: list[SeenSpan], score_id: str, step: SeenSpan, run: str) -> None:
    """From the scored sample that the step trained on back to the submission of its prompt."""
    by_id = {span.span_id: span for span in spans}
    score = by_id[score_id]
    chat = by_id[score.parent_id]
    generate = by_id[chat.parent_id]
    submit = by_id[generate.parent_id]
    way = (submit, generate, chat, score)
    assert [span.name for span in way] == [
        f"submit {run}.prompts", f"generate {run}.prompts", "chat policy", f"score {run}.rollouts",
    ]  # fmt: skip
    assert [span.service.removeprefix("rollstream-") for span in way] == [
        "producer",
        "generator",
        "generator",
        "scorer",
    ]
    assert submit.parent_id == ""
    assert len({span.attributes["rollstream.group_id"] for span in way}) == 1
    assert score.attributes["rollstream.rollout_id"] == chat.attributes["rollstream.rollout_id"]
    assert chat.attributes["rollstream.weight_version"] <= step.attributes["rollstream.weight_version"]
    assert chat.attributes["gen_ai.usage.output_tokens"] > 0
    assert not any(span.has_failed for span in way)
    (close,) = [span for span in spans if span.operation == "close"]
    assert close.attributes["rollstream.outcome"] == "trained"
    assert close.attributes["rollstream.step"] == step.attributes["rollstream.step"]
    assert step.attributes["rollstream.num_samples"] == len(step.links) == len(set(step.links))


def check_outside_trace(spans: list[SeenSpan]) -> None:
    """The submitter's trace goes on, whatever its flags say; the state of its vendor goes along."""
    generated, unread = sorted((s for s in spans if s.operation == "generate"), key=lambda span: span.has_failed)
    assert {generated.parent_id, unread.parent_id} == {OUTSIDE_SPAN}
    assert unread.attributes["error.type"] == "unreadable"
    assert [span.operation for span in spans].count("score") == 2
    assert {span.tracestate for span in spans} == {"vendor=x"}
    (close,) = [span for span in spans if span.operation == "close"]
    assert close.attributes["rollstream.reason"] == "not_for_training"


def check_headers(run: Run) -> None:
    """Each rollout has a small context, whatever its prompt came with; a dead letter has the original's headers."""
    for topic in ("rollouts", "scored"):
        for message in run.messages(topic):
            headers = dict(header for header in message.headers if not header[0].startswith("ce_"))
            assert {"traceparent"} <= headers.keys() <= {"traceparent", "tracestate"}
            assert sum(len(name) + len(value) for name, value in message.headers) < MOST_HEADER_BYTES
    (letter,) = run.messages("dead-letters")
    assert {name: value.decode() for name, value in letter.headers if name in OUTSIDE} == OUTSIDE


def check_attributes_hold_no_text(receiver: OtlpReceiver, loop: Loop) -> None:
    texts = {message["content"] for prompt in loop.outside.records("prompts") for message in prompt["messages"]}
    values = {str(value) for span in receiver.spans for value in span.attributes.values()}
    assert texts
    assert [text for text in texts if any(text in value for value in values)] == []


def check_logs(run: Run, loop: Loop) -> None:
    """A line about a record has the ids of its trace, a line about a step those of the step's."""
    generator = [line for line in lines(loop, "generator") if "dead letter (unreadable)" in line["message"]]
    assert [(line["trace_id"], line["topic"]) for line in generator] == [(OUTSIDE_TRACE, f"{run.name}.prompts")]
    assert len(generator[0]["span_id"]) == 16
    steps = [line for line in lines(loop, "trainer") if re.match(r"step \d+: ", line["message"])]
    assert {len(line["trace_id"]) for line in steps} == {32}
    assert not any(TOKEN in stage.process.said() for stage in loop.stages.values())


def lines(loop: Loop, stage: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in loop.stages[stage].process.said().splitlines() if line.startswith("{")]


def num_dropped(port: int) -> float:
    return scraped(port, "rollstream_tracing_dropped_spans_total", reason="failed") or 0.0


def check_end(loop: Loop, seconds: float) -> None:
    """Every stage ends in order; each said once a minute at most that spans are lost."""
    said = {stage: lines(loop, stage) for stage in STAGES}
    loop.end()
    for stage in ("generator", "scorer"):
        loop.stop(stage)
    for stage in STAGES:
        warned = [line for line in said[stage] if "spans were dropped" in line["message"]]
        assert 1 <= len(warned) <= 2 + seconds / 60, warned
