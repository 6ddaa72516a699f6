"""The table `[tracing]`, and the trace context in headers that anybody may have written."""

import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.process.settings.base import STAGES, StageSettings, settings_class
from rollstream.process.settings.run_file import RunFile
from rollstream.process.tracing.context import (
    MAX_TRACESTATE_BYTES,
    TraceContext,
    context_in,
    headers_of_environment,
    log_keys,
)
from rollstream.process.tracing.settings import TracingSettings
from rollstream.schemas.errors import ConfigurationError

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()
WELL_FORMED = [PARENT, PARENT[:-2] + b"00", PARENT[:-2] + b"ff", b"01" + PARENT[2:], b"cc" + PARENT[2:] + b"-more.\n"]
MALFORMED = [
    b"",
    b"\xff\xfe",
    PARENT[:-1],
    PARENT + b"\n",
    b" " + PARENT,
    PARENT + b"-more",
    PARENT.upper(),
    b"ff" + PARENT[2:],
    f"00-{'0' * 32}-{SPAN}-01".encode(),
    f"00-{TRACE}-{'0' * 16}-01".encode(),
    f"00-{TRACE[:-1]}-{SPAN}-01".encode(),
    PARENT.replace(b"-", b"_"),
    b"cc" + PARENT[2:] + b"-" + b"x" * 10_000,
]
STATES = [b"a=1", b"vendor=x,tenant@system=y z!", b" a=1 ,\tb=2,, ", b"a" * 200 + b"=" + b"b" * 200]
BAD_STATES = [
    b"a",
    b"a=",
    b"A=1",
    b"a=1,a=2",
    b"a=1;b=2,",
    b"a=\xc3\xa9",
    b"a=1\n",
    b"a==",
    b"a=" + b"x" * 600,
    b",".join(b"k%d=1" % number for number in range(33)),
    b",".join(b"k%d=%s" % (number, b"x" * 250) for number in range(3)),
]


@pytest.mark.parametrize("parent", WELL_FORMED)
def test_a_well_formed_context_is_read_and_written_again(parent: bytes) -> None:
    found = context_in([("other", b"x"), ("traceparent", parent)])
    assert found == TraceContext(int(TRACE, 16), int(SPAN, 16), int(parent[53:55], 16))
    assert found.headers == (("traceparent", b"00" + parent[2:55]),)
    assert log_keys(found) == {"trace_id": TRACE, "span_id": SPAN}


@pytest.mark.parametrize("parent", MALFORMED)
def test_a_malformed_context_is_none(parent: bytes) -> None:
    assert context_in([("traceparent", parent), ("tracestate", b"a=1")]) is None


@pytest.mark.parametrize("state", STATES)
def test_a_well_formed_state_goes_along(state: bytes) -> None:
    found = context_in([("tracestate", state), ("traceparent", PARENT)])
    assert found is not None
    ((_, parent), (name, value)) = found.headers
    assert (parent, name) == (PARENT, "tracestate")
    assert value == b",".join(part.strip() for part in state.split(b",") if part.strip())


@pytest.mark.parametrize("state", BAD_STATES)
def test_a_malformed_state_is_left_out_and_its_parent_counts(state: bytes) -> None:
    found = context_in([("traceparent", PARENT), ("tracestate", state)])
    assert found is not None
    assert found.headers == (("traceparent", PARENT),)


def test_the_last_of_several_headers_counts_and_no_other_goes_along() -> None:
    last = PARENT.replace(b"4bf9", b"1111")
    found = context_in([("traceparent", PARENT), ("traceparent", last), ("baggage", b"a=1"), ("Traceparent", PARENT)])
    assert found is not None
    assert found.headers == (("traceparent", last),)
    assert context_in([("traceparent", PARENT), ("traceparent", None)]) is None
    assert context_in([]) is None


anything = st.binary(max_size=600) | st.sampled_from([*WELL_FORMED, *MALFORMED, *STATES, *BAD_STATES])
names = st.sampled_from(["traceparent", "tracestate", "baggage", "x"]) | st.text(max_size=20)


@given(st.lists(st.tuples(names, anything | st.none()), max_size=6))
def test_whatever_the_headers_are_what_goes_on_is_small_well_formed_and_stays_as_it_is(
    headers: list[tuple[str, bytes | None]],
) -> None:
    found = context_in(headers)
    if found is None:
        return
    passed_on = found.headers
    assert [name for name, _ in passed_on] in (["traceparent"], ["traceparent", "tracestate"])
    assert len(passed_on[0][1]) == 55
    assert sum(len(value) for _, value in passed_on[1:]) <= MAX_TRACESTATE_BYTES
    assert context_in(passed_on) == found


@given(st.binary(max_size=60).map(lambda raw: PARENT[:20] + raw + PARENT[20 + len(raw) :]))
def test_a_context_with_changed_bytes_is_none_or_as_it_was_written(parent: bytes) -> None:
    found = context_in([("traceparent", parent)])
    assert found is None or found.headers[0][1][2:] == parent[2:55]


def test_a_client_goes_on_with_the_trace_of_whoever_started_it() -> None:
    assert headers_of_environment({}) == ()
    assert headers_of_environment({"TRACEPARENT": "no"}) == ()
    assert headers_of_environment({"TRACEPARENT": PARENT.decode(), "TRACESTATE": "a=1"}) == (
        ("traceparent", PARENT),
        ("tracestate", b"a=1"),
    )


SECRET = "hunter2hunter2"
TABLES = '[producer]\nenvironment = "sort_digits"\n[generator.engine]\nmodel_path = "m"\n[trainer]\nmodel_path = "m"\n'
WRONG = {
    "a password in the endpoint": f'endpoint = "https://me:{SECRET}@collector"',
    "a key in the endpoint's query": f'endpoint = "https://collector/otlp?key={SECRET}"',
    "an endpoint without a scheme": f'endpoint = "{SECRET}@collector:4318"',
    "another scheme": f'endpoint = "grpc://{SECRET}@collector:4317"',
    "a header with a second line": f'headers = {{ authorization = "{SECRET}\\nX-Other: 1" }}',
    "a header that is not ASCII": f'headers = {{ authorization = "{SECRET}é" }}',
    "a header with a space at its end": f'headers = {{ authorization = "{SECRET} " }}',
    "a header whose name is none": f'headers = {{ "{SECRET}:" = "x" }}',
    "a list of headers": f'headers = ["{SECRET}"]',
    "a text for the headers": f'headers = "{SECRET}"',
    "a ratio that is none": f'headers = {{ authorization = "{SECRET}" }}\nsample_ratio = 2',
}


def load(tmp_path: Path, lines: str) -> StageSettings:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n[tracing]\n{lines}\n{TABLES}')
    return settings_class("scorer").load(config)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_refused_at_its_place_and_shows_no_key(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"rollstream\.toml line \d: tracing\.") as raised:
        load(tmp_path, WRONG[wrong])
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_every_stage_has_it_and_it_is_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n{TABLES}[scorer]\ntracing = {{ sample_ratio = 0.5 }}\n')
    for stage in STAGES:
        settings, problems = settings_class(stage).checked(RunFile.read(config))
        assert settings is not None, problems
        assert not settings.tracing.is_on
        assert settings.tracing.sample_ratio == (0.5 if stage == "scorer" else 1.0)
    monkeypatch.setenv("ROLLSTREAM_TRACING__ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("ROLLSTREAM_TRACING__HEADERS__X-KEY", SECRET)
    assert settings_class("scorer").load(config).tracing.headers["x-key"].get_secret_value() == SECRET


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://vendor.example.org/otlp", "https://vendor.example.org/otlp/v1/traces"),
        ("https://vendor.example.org/v1/traces", "https://vendor.example.org/v1/traces"),
    ],
)
def test_the_path_for_traces_is_added_once(endpoint: str, url: str) -> None:
    assert TracingSettings(endpoint=endpoint).url == url
