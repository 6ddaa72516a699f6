"""The headers by which tools that know CloudEvents, but not this project, tell what a record is."""

import pytest

from rollstream.bus.run import Run
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.topics import PROMPTS, ROLLOUTS
from tests.harness.builders import a_generated, a_prompt


@pytest.fixture
def run() -> Run:
    return Run(StageSettings.model_validate({"run": "demo"}))


def test_each_record_says_what_it_is_and_where_it_comes_from_before_its_other_headers(run: Run) -> None:
    prompt = run.out_record(PROMPTS, a_prompt(1), (("traceparent", b"00"),))
    rollout = run.out_record(ROLLOUTS, a_generated(0))
    named = dict(prompt.headers)
    assert list(named) == ["ce_specversion", "ce_id", "ce_source", "ce_type", "traceparent"]
    assert (named["ce_specversion"], named["ce_source"]) == (b"1.0", b"/rollstream/demo")
    assert (named["ce_type"], dict(rollout.headers)["ce_type"]) == (
        b"rollstream.PromptSubmitted",
        b"rollstream.RolloutGenerated",
    )
    ids = {dict(run.out_record(PROMPTS, a_prompt(1)).headers)["ce_id"] for _ in range(100)}
    assert len(ids) == 100, "no two events share an id"
