"""Programs run in a sandbox service by URL: what counts as passed, and what makes a row unscored."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from typing import Any

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rewards.registry import default_compute_score
from rollstream.environments.rewards.sandbox import MAX_ANSWER_BYTES
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import RewardError, UnknownEnvironmentError
from tests.harness.reward_inputs import an_answer
from tests.harness.threads import Answering, served
from tests.harness.waits import DEADLINE_SECONDS

SUM = "```python\nprint(sum(map(int, input().split())))\n```"


def run_here(request: dict[str, Any]) -> dict[str, Any]:
    """Answers as sandbox-fusion does. It runs the programs of these tests."""
    assert request["language"] == "python"
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", request["code"]],
            input=request["stdin"],
            timeout=request["run_timeout"],
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"status": "Failed", "compile_result": None, "run_result": {"status": "TimeLimitExceeded"}}
    result = {"status": "Finished", "return_code": ran.returncode, "stdout": ran.stdout, "stderr": ran.stderr}
    return {"status": "Failed" if ran.returncode else "Success", "compile_result": None, "run_result": result}


@contextmanager
def a_sandbox(answer: Callable[[dict[str, Any]], Any] = run_here, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """A server on a port of its own, and the requests that it got."""
    requests: list[Any] = []

    class Handler(Answering, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/run_code"
            request = json.loads(self.body())
            requests.append(request)
            found = answer(request)
            self.answer(
                found if isinstance(found, bytes) else json.dumps(found).encode(), status, Location="/elsewhere"
            )

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/run_code", requests


def score(url: str, completion: str, seconds: str = "30", **tests: Any) -> float:
    options = {"sandbox_url": url, "sandbox_run_seconds": seconds}
    environment = load_environment("by_source", {"by_source": Declaration(options=options)})
    reward, components = environment.rubric.score(an_answer(completion, json.dumps(tests), data_source="taco"))
    assert components == {"score": reward}
    return reward


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (SUM, 1.0),
        ("First I thought\n```python\nprint(1)\n```\nbut then\n" + SUM, 1.0),
        ("```\nprint(sum(map(int, input().split())), '  ')\n```", 1.0),
        ("print(sum(map(int, input().split())))", 1.0),
        ("```python\nprint(3)\n```", 0.5),
        ("```python\nprint(sum(map(int, input().split())))", 1.0),
        ("```python\nprint(\n```", 0.0),
        ("```python\nraise SystemExit(1)\n```", 0.0),
        ("```python\n\n```", 0.0),
        ("```python\nprint(open('/no/such/file').read())\n```", 0.0),
    ],
)
def test_the_score_is_the_share_of_tests_with_the_right_output(completion: str, expected: float) -> None:
    with a_sandbox() as (url, _):
        assert score(url, completion, inputs=["1 2\n", "3 4\n"], outputs=["3\n", "7\n"]) == expected


@pytest.mark.parametrize(
    "code", ["def add(a, b):\n    return a + b", "class Solution:\n    def add(self, a, b):\n        return a + b"]
)
@pytest.mark.parametrize("inputs", [[[1, 2], [3, 4]], ["1\n2", "3\n4"]])
@pytest.mark.parametrize("outputs", [[3, 7], [[3], [7]], ["3", "7"]])
def test_a_function_is_called_with_the_arguments_of_each_test(code: str, inputs: list[Any], outputs: list[Any]) -> None:
    with a_sandbox() as (url, _):
        assert score(url, f"```python\n{code}\n```", inputs=inputs, outputs=outputs, fn_name="add") == 1.0


def test_the_scripts_function_asks_the_sandbox_that_it_is_given() -> None:
    tests = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    with a_sandbox() as (url, requests):
        assert default_compute_score("apps", SUM, tests, sandbox_fusion_url=url) == {"score": 1.0, "acc": 1.0}
        assert len(requests) == 1
    with pytest.raises(RewardError, match="must run in a sandbox, never here"):
        default_compute_score("apps", SUM, tests)


def test_only_the_first_ten_tests_are_run_and_none_after_one_that_ran_too_long() -> None:
    many = {"inputs": ["1 2"] * 30, "outputs": ["3"] * 30}
    with a_sandbox() as (url, requests):
        assert score(url, SUM, **many) == 1.0
        assert len(requests) == 10
        requests.clear()
        assert score(url, "```python\nwhile True: pass\n```", "0.2", **many) == 0.0
        assert len(requests) == 5


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": "SandboxError", "message": "no container"}, "could not run the program: status 'SandboxError'"),
        ({"status": "Success", "run_result": None}, "could not run the program"),
        ({"status": "Success", "run_result": {"status": "Finished", "stdout": None}}, "could not run the program"),
        ({"status": "Failed"}, "could not run the program"),
        ([], "could not run the program"),
        (b"<html>", "what is no JSON"),
        (b"[" * 100_000, "what is no JSON"),
        (b" " * (MAX_ANSWER_BYTES + 1), "more than 4194304 bytes"),
    ],
)
def test_what_the_service_gets_wrong_is_never_a_reward(answer: Any, why: str) -> None:
    with a_sandbox(lambda _: answer) as (url, _), pytest.raises(RewardError, match=why):
        score(url, SUM, inputs=["1 2"], outputs=["3"])


@pytest.mark.parametrize("status", [302, 404, 429, 500, 504])
def test_a_status_other_than_200_is_never_a_reward_and_no_redirect_is_followed(status: int) -> None:
    with a_sandbox(lambda _: {}, status) as (url, requests):
        with pytest.raises(RewardError, match=f"answered with HTTP status {status}"):
            score(url, SUM, inputs=["1 2"], outputs=["3"])
        assert len(requests) == 1


def test_a_service_that_is_not_there_is_never_a_reward() -> None:
    with a_sandbox() as (url, _):
        pass
    with pytest.raises(RewardError, match="did not answer: ConnectionRefusedError"):
        score(url, SUM, inputs=["1 2"], outputs=["3"])


def test_a_service_that_never_answers_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is there for the start of a container, which none is here.
    monkeypatch.setattr("rollstream.environments.rewards.sandbox._OVERHEAD_SECONDS", 0.3)
    is_over = Event()

    def hang(_: dict[str, Any]) -> dict[str, Any]:
        is_over.wait(DEADLINE_SECONDS)
        return {}

    with a_sandbox(hang) as (url, _):
        try:
            with pytest.raises(RewardError, match="did not answer: TimeoutError"):
                score(url, SUM, "0.1", inputs=["1 2"], outputs=["3"])
        finally:
            is_over.set()


@pytest.mark.parametrize(
    "tests",
    [
        {},
        {"inputs": [], "outputs": []},
        {"inputs": ["1"], "outputs": []},
        {"inputs": "1", "outputs": "1"},
        {"inputs": ["1"], "outputs": ["1"], "fn_name": "f'] + __import__('os')"},
    ],
)
def test_tests_that_cannot_be_read_leave_the_row_unscored(tests: dict[str, Any]) -> None:
    with a_sandbox() as (url, requests):
        with pytest.raises(RewardError, match=r"must be JSON text|is no name of a function"):
            score(url, SUM, **tests)
        assert not requests


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http:///run_code",
        "ftp://host/run_code",
        "http://me:pass@host/run_code",
        "http://@host/run_code",
        "http://host:80a/run_code",
        "http://host:99999/run_code",
        "http://[::1/run_code",
        "http://host/run code",
        "http://host/run\r\nX-Header: 1",
    ],
)
def test_a_url_of_another_kind_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match="sandbox_url must be http") as refused:
        score(url, SUM, inputs=["1"], outputs=["1"])
    assert url not in str(refused.value)
