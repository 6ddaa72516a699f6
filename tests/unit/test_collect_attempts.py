"""What a sample that failed costs: attempts, what does not use them up, and the exit code."""

import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.cli.collect import command
from rollstream.cli.main import cli
from rollstream.engines.settings import EngineSettings
from rollstream.offline.continuous.run import run_continuous
from rollstream.process.stop import Stop
from rollstream.schemas.errors import (
    EngineDeadError,
    EngineError,
    FailedSampleError,
    RefusedKeyError,
    TooManyFailuresError,
)
from rollstream.schemas.failure import FailureCode
from tests.harness.collecting import CountingEngine, a_job, collected, lines_of, settings_for, some_prompts
from tests.harness.fake_openai import WITHOUT_DATABASE, Planned, fake_openai
from tests.harness.http_engines import an_engine


def refused(prompt: str) -> Exception:
    return FailedSampleError(FailureCode.REFUSED, f"{prompt} is against the rules")


@pytest.mark.parametrize("error", [EngineError("overloaded"), FailedSampleError(FailureCode.REFUSED, "no such model")])
def test_a_run_that_gives_up_uses_up_no_attempts(error: Exception, tmp_path: Path) -> None:
    source, settings = some_prompts(tmp_path / "data.jsonl", 300), settings_for(tmp_path / "out.jsonl", num_samples=1)
    for _ in range(5):
        with pytest.raises(TooManyFailuresError, match=r"100 samples one after another .* have used up no attempt"):
            collected(source, settings, CountingEngine(lambda prompt: error))
    report = collected(source, settings)
    assert (len(lines_of(tmp_path / "out.jsonl")), report.exit_code) == (300, 0)
    assert report.summary is not None
    assert report.summary.num_completed == 300


def test_failures_that_an_answer_ends_are_noted_and_count(tmp_path: Path) -> None:
    """90 in a row are held; the next answer shows that the engine lives."""
    source, settings = some_prompts(tmp_path / "data.jsonl", 100), settings_for(tmp_path / "out.jsonl", num_samples=1)
    engine = CountingEngine(lambda prompt: EngineError("overloaded") if "00005" <= prompt < "00095" else None)
    report = collected(source, settings, engine)
    assert report.counts.num_held == 0
    assert {line["attempts"] for line in lines_of(tmp_path / "out.jsonl_failures.jsonl")} == {1}
    assert len(lines_of(tmp_path / "out.jsonl_failures.jsonl")) == 90


def test_rows_that_are_refused_again_one_after_another_end_a_second_run_as_they_did_the_first(tmp_path: Path) -> None:
    source, settings = some_prompts(tmp_path / "data.jsonl", 300), settings_for(tmp_path / "out.jsonl", num_samples=1)
    engine = CountingEngine(lambda prompt: refused(prompt) if prompt >= "00180" else None)
    for _ in range(3):
        assert collected(source, settings, engine).exit_code == 0
    assert {line["attempts"] for line in lines_of(tmp_path / "out.jsonl_failures.jsonl")} == {3}
    assert len(lines_of(tmp_path / "out.jsonl")) == 300


def test_what_failed_as_often_as_it_may_is_asked_again_where_that_is_wanted(tmp_path: Path) -> None:
    source, settings = some_prompts(tmp_path / "data.jsonl", 4), settings_for(tmp_path / "out.jsonl", max_attempts=1)
    fails = CountingEngine(lambda prompt: EngineError("overloaded") if prompt == "00002=" else None)
    collected(source, settings, fails)
    again = CountingEngine()
    collected(source, settings, again)
    assert again.asked == []
    again = CountingEngine()
    collected(source, settings.model_copy(update={"retry_failed": True}), again)
    assert again.asked == ["00002="] * 2
    assert all(row["response"] for row in lines_of(tmp_path / "out.jsonl"))


@pytest.mark.parametrize(("fail_over", "exit_code"), [(0.5, 70), (0.71, 0), (1.0, 0), (0.0, 70)])
def test_the_share_that_failed_decides_the_exit_code(fail_over: float, exit_code: int, tmp_path: Path) -> None:
    source = some_prompts(tmp_path / "data.jsonl", 100)
    settings = settings_for(tmp_path / "out.jsonl", num_samples=1, fail_over=fail_over)
    engine = CountingEngine(lambda prompt: refused(prompt) if prompt >= "00029" else None)
    report = collected(source, settings, engine)
    assert report.exit_code == exit_code
    assert ("--fail-over sets the share" in "\n".join(report.lines())) == (exit_code == 70)


def test_ctrl_c_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    stop = Stop()
    with fake_openai(is_ready=False) as server:
        engine = an_engine(server.url, ready_seconds=600.0)
        asking = threading.Timer(0.5, stop.ask)
        asking.start()
        report = collected(some_prompts(tmp_path / "in.jsonl", 2), settings_for(tmp_path / "out.jsonl"), engine, stop)
        asking.join()
    assert report.exit_code == 130
    assert server.routes


@pytest.mark.parametrize("planned", [Planned(status=401), Planned(status=403), WITHOUT_DATABASE])
def test_a_refused_key_ends_a_collection_at_the_first_answer_without_any_attempt(
    planned: Planned, tmp_path: Path
) -> None:
    source, settings = some_prompts(tmp_path / "in.jsonl", 300), settings_for(tmp_path / "out.jsonl", num_samples=1)
    with fake_openai(planned=deque([planned] * 300)) as server:
        for _ in range(4):
            with pytest.raises(RefusedKeyError, match=rf"refuses the key \(status {planned.status}\)"):
                collected(source, settings, an_engine(server.url))
        assert len(server.asked) <= 4 * settings.concurrency
        server.planned.clear()
        report = collected(source, settings, an_engine(server.url))
    assert report.summary is not None
    assert report.summary.num_completed == 300


@pytest.mark.parametrize("name", ["collect", "generate-rollouts", "word-count-rollouts"])
@pytest.mark.parametrize("option", ["--max-attempts", "--max_attempts"])
def test_every_command_that_asks_takes_attempts_with_hyphens_and_underscores(name: str, option: str) -> None:
    said = CliRunner().invoke(cli, [name, option, "255"]).output
    assert "1<=x<=254" in said


def test_a_dead_engine_uses_up_no_attempts_of_those_before_it(tmp_path: Path) -> None:
    """They may have failed for the same reason."""
    source, settings = some_prompts(tmp_path / "data.jsonl", 60), settings_for(tmp_path / "out.jsonl", num_samples=1)
    settings = settings.model_copy(update={"max_attempts": 1})
    dying = CountingEngine(lambda prompt: EngineDeadError("gone") if prompt == "00050=" else EngineError("overloaded"))
    with pytest.raises(EngineDeadError):
        collected(source, settings, dying)
    assert collected(source, settings).exit_code == 0
    assert all(row["response"] for row in lines_of(tmp_path / "out.jsonl"))


def test_a_command_gives_the_code_of_its_share(tmp_path: Path) -> None:
    rejected = Planned(status=400, message="against the rules")
    source = some_prompts(tmp_path / "in.jsonl", 8)
    words = [str(source), "--model", "tiny", "--concurrency", "1"]
    for fail_over, expected in (("0.5", 70), ("1", 0)):
        with fake_openai(planned=deque([rejected] * 6)) as server:
            output = ["--output", str(tmp_path / f"{fail_over}.jsonl"), "--fail-over", fail_over]
            done = CliRunner().invoke(command, [*words, "--url", server.url, *output])
        assert done.exit_code == expected, done.output


def test_parts_that_are_not_finished_are_asked_again_and_their_share_decides(tmp_path: Path) -> None:
    def look(**fields: Any) -> int:
        engine = EngineSettings.model_validate({"kind": "openai_http", "http": {"urls": [server.url], "model": "tiny"}})
        one = a_job(source, tmp_path / "out", engine=engine, concurrency=1, max_attempts=2, **fields)
        return run_continuous(one, Stop(), lambda line: None)

    source = some_prompts(tmp_path / "data.jsonl", 4)
    with fake_openai(planned=deque([Planned(status=400, message="against the rules")] * 3)) as server:
        assert look() == 70
        assert len(server.asked) == 4
        assert look(retry_failed=True) == 0
    assert len(server.asked) == 7
    assert all(row["response"] for row in lines_of(tmp_path / "out" / "part-000001.jsonl"))
