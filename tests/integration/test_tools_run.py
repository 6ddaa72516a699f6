"""An agent with tools, through Kafka: the tools' verdict becomes the reward, and what they did is in the record."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted, Sampling
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import SCORED
from tests.harness.builders import a_prompt
from tests.harness.fake_openai import fake_openai
from tests.harness.running import Run, a_run
from tests.harness.waits import wait_until

pytestmark = pytest.mark.usefixtures("forks")

GROUP_SIZE = 3
CALLED = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"by": 4}'}}
CHOICE = {"message": {"role": "assistant", "content": None, "tool_calls": [CALLED]}, "finish_reason": "tool_calls"}


def asked(run: Run, row: int, **options: str) -> PromptSubmitted:
    return a_prompt(
        row,
        run=run.name,
        group_size=GROUP_SIZE,
        environment="session",
        sampling=Sampling(max_tokens=16),
        agent=AgentChoice(name="tools", options={"tools": "box", "max_steps": "2", **options}),
    )


def test_the_verdict_of_a_samples_tools_is_its_reward(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    with fake_openai(kind="vllm", choice=CHOICE) as server, a_run(kafka, topic_prefix, tmp_path) as run:
        run.tables["tools.box"] = {"kind": "python", "path": "tests.harness.own_tools.Box"}
        run.tables["generator.engine"] = {"kind": "openai_http"}
        run.tables["generator.engine.http"] = {
            "urls": [server.url],
            "model": "tiny",
            "weight_updates": "vllm",
        }
        run.publish_weights(0, save({"weight": np.zeros(1, dtype=np.float32)}))
        for stage in ("generator", "scorer"):
            run.start(stage)
        run.submit(asked(run, 0), asked(run, 1, tools="http://evil"))

        def all_scored() -> list[RolloutScored] | None:
            found = run.records(SCORED)
            return found if len(found) == 2 * GROUP_SIZE else None

        scored = wait_until(all_scored, lambda: f"six scored samples; {run.said()[-500:]}", 120)
    assert scored
    answered = [one for one in scored if one.rollout.status is Status.COMPLETED]
    assert [one.scoring.reward for one in answered] == [4.0] * GROUP_SIZE, "a session each, called once"
    for one in answered:
        first, second = one.rollout.turns
        assert [(answer.call_id, answer.content) for answer in first.tool_answers] == [("call-1", "4")]
        assert second.is_truncated, "it calls again at its last step"
        assert json.loads(one.rollout.observations["verify"])["reward"] == 4.0
    refused = [one.rollout.failure for one in scored if one.rollout.status is Status.FAILED]
    assert [failure.code for failure in refused if failure] == [FailureCode.BAD_AGENT_OPTIONS] * GROUP_SIZE
