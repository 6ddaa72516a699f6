"""Evaluations in Weights & Biases, without a network."""

import sys
from pathlib import Path

import pytest

from rollstream.client.evaluation import EvaluatedPrompt, EvaluatedSample, EvaluationRequest, report_of
from rollstream.client.wandb_log import WandbLog
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.rollout import Status
from tests.harness.builders import a_prompt
from tests.harness.waits import wait_until


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def test_offline_every_evaluation_lies_in_the_directory(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    request = EvaluationRequest(environment="sort_digits", weight_version=7, num_prompts=2, num_samples=2)
    samples = tuple(EvaluatedSample(status=Status.COMPLETED, reward=reward) for reward in (0.0, 1.0))
    report = report_of(request, 1.0, [EvaluatedPrompt(prompt=a_prompt(row), samples=samples) for row in range(2)])
    log = WandbLog("tests", run="demo", output=tmp_path / "results.jsonl")
    log.add(report)
    log.close()
    [written] = tmp_path.glob("wandb/offline-run-*-demo-evaluate-*/*.wandb")
    for name in (b"evaluation/reward", b"evaluation/pass_at_2", b"evaluation/failed_prompts"):
        # The library's own process writes it.
        wait_until(lambda name=name: name in written.read_bytes(), f"{name!r} in the file")


def test_a_file_of_results_has_a_log_of_its_own_and_goes_on_with_it(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    for name in ("one.jsonl", "other.jsonl", "one.jsonl"):
        WandbLog("tests", run="demo", output=tmp_path / name).close()
    # Two of one second get a number behind.
    ids = {written.name.split("-evaluate-")[1][:8] for written in tmp_path.glob("wandb/offline-run-*-demo-evaluate-*")}
    assert len(ids) == 2


def test_without_the_library_the_option_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"rollstream\[wandb\]"):
        WandbLog("tests", run="demo", output=tmp_path / "results.jsonl")
