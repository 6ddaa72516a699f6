"""The environment `session`: the verdict of a tools' session is the reward, and without one there is none."""

import json

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.pool.verdicts import ScoringSample
from rollstream.environments.rubric import RewardInput
from rollstream.environments.session import VERIFY
from rollstream.schemas.errors import ConfigurationError, RewardError
from rollstream.schemas.rollout import FinishReason
from tests.harness.builders import a_generated, a_tool_turn, a_turn


def saying(verdict: object) -> RewardInput:
    text = verdict if isinstance(verdict, str) else json.dumps(verdict)
    return RewardInput(completion="", assistant_messages=(), observations={VERIFY: text})


def test_the_sessions_reward_and_components_are_passed_on():
    said = {"reward": 0.5, "reward_components": {"right": 1, "short": 0.0}, "response": {"id": "r"}}
    assert load_environment("session").rubric.score(saying(said)) == (0.5, {"right": 1.0, "short": 0.0})
    assert load_environment("session").rubric.score(saying({"reward": 0})) == (0.0, {})


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ({"response": {}}, "reward is None"),
        ({"reward": "1"}, "no finite number|not a finite number"),
        ('{"reward": NaN}', "not a finite number"),
        ({"reward": 1e12}, "the bound is"),
        ({"reward": 1.0, "mask_sample": True}, "mask_sample"),
        ({"reward": 0.0, "failure_kind": "judge_failed"}, "judge_failed"),
        ({"reward": 1.0, "reward_components": [1]}, "are a list"),
        ({"reward": 1.0, "reward_components": {"right": "yes"}}, "component 'right'"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "is a list"),
    ],
)
def test_a_verdict_that_gives_no_reward_leaves_the_sample_without_one(verdict, said):
    with pytest.raises(RewardError, match=said):
        load_environment("session").rubric.score(saying(verdict))


def test_a_sample_without_a_verdict_has_no_reward_and_it_is_said_what_is_missing():
    with pytest.raises(RewardError, match=r"\[tools.NAME\]"):
        load_environment("session").rubric.score(RewardInput(completion="", assistant_messages=("7",)))
    with pytest.raises(ConfigurationError, match="no tasks of its own"):
        load_environment("session").tasks("train", 0)


def test_a_rubric_sees_turns_with_their_calls_answers_and_types_and_what_the_agent_saw():
    rollout = a_generated(
        turns=(
            a_tool_turn(turn_type="act", turn_number=1, reasoning="Add them."),
            a_turn(finish_reason=FinishReason.LENGTH),
        ),
        observations={VERIFY: "{}"},
    )
    answer = ScoringSample.of(rollout).answer
    assert answer.observations == {VERIFY: "{}"}
    acted, last = answer.turns
    assert (acted.turn_type, acted.turn_number, acted.reasoning) == ("act", 1, "Add them.")
    assert [call.name for call in acted.tool_calls] == ["add"]
    assert [one.content for one in acted.tool_answers] == ["7"]
    assert (last.finish_reason, last.text) == (FinishReason.LENGTH, "01259")
    alone = answer.of_turn(0)
    assert (alone.completion, alone.assistant_messages, alone.turns) == ("01259", ("01259",), (acted,))
