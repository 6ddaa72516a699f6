"""What the cycles of a rollout started from, and the prompts that ask it again."""

import pytest

from rollstream.process.settings.declared import Declaration
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.states.starts import drawn, prompts_of, starts_of
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Purpose, Sampling
from tests.harness.builders import RUN
from tests.harness.cycles import a_cycled, cycle_turns

SETTINGS = ProducerSettings(run=RUN, source="states", name="states", group_size=4)


def test_each_cycle_and_the_last_summary_is_a_start() -> None:
    found = starts_of(a_cycled(5, RUN, num_cycles=2).rollout, {})
    assert [(start.turn, start.messages[-1].content, start.is_resume) for start in found] == [
        (0, "P:5= S:", False),
        (2, "P:5= S:s1", False),
        (4, "P:5= S:s2", True),
    ]
    assert {start.messages[0].content for start in found} == {"Be brief."}


def test_a_rollout_that_was_cut_off_after_reasoning_has_nothing_to_resume_from() -> None:
    rollout = a_cycled(5, RUN, turns=cycle_turns(2, ends_with_summary=False)).rollout
    assert [start.turn for start in starts_of(rollout, {})] == [0, 2]


def test_what_the_settings_say_of_the_agent_holds_for_its_states() -> None:
    declared = {"reasoning_cache": Declaration(options={"reasoning_prompt_template": "Q:{problem}/{curr_summary}"})}
    found = starts_of(a_cycled(5, RUN, num_cycles=1).rollout, declared)
    assert [start.messages[-1].content for start in found] == ["Q:5=/", "Q:5=/s1"]


def test_states_of_plain_text_with_an_opened_tag_are_asked_in_that_form() -> None:
    options = {"use_think_tags": "true", "reasoning_prompt_style": "completion"}
    start = starts_of(a_cycled(5, RUN, options=options).rollout, {})[0]
    assert len(start.messages) == 1
    assert start.agent.name == "single_turn"
    assert start.agent.options == {"use_think_tags": "true", "is_text": "true"}


def test_options_that_the_agent_does_not_take_are_told() -> None:
    with pytest.raises(FailedSampleError, match=r"has \{answer\}"):
        starts_of(a_cycled(5, RUN, options={"reasoning_prompt_template": "{answer}"}).rollout, {})


def test_at_most_so_many_are_drawn_the_same_ones_each_time_and_others_of_another_rollout() -> None:
    chosen = set()
    for row in range(40):
        rollout = a_cycled(row, RUN).rollout
        starts = starts_of(rollout, {})
        turns = [start.turn for start in drawn(starts, rollout, SETTINGS)]
        assert turns == [start.turn for start in drawn(starts[::-1], rollout, SETTINGS)] == sorted(turns)
        assert len(turns) == SETTINGS.states.per_rollout == 2
        chosen.add(tuple(turns))
    assert len(chosen) > 3


def test_a_state_is_a_training_prompt_of_its_rollouts_problem() -> None:
    rollout = a_cycled(5, RUN).rollout
    starts = starts_of(rollout, {})
    prompts = list(prompts_of(starts, rollout, SETTINGS, "topic serve-scored/x"))
    assert [prompt.metadata.get("resume_state") for prompt in prompts] == [None, None, None, "true"]
    prompt = prompts[1]
    assert prompt.prompt_id == f"topic serve-scored/x/{rollout.rollout_id}/2"
    assert prompt.group_id == group_id(RUN, prompt.prompt_id, 0)
    assert prompt.metadata == {"difficulty": "5", "state_of": f"{rollout.rollout_id}/2"}
    assert (prompt.purpose, prompt.group_size, prompt.producer) == (Purpose.TRAIN, 4, "states")
    assert (prompt.environment, prompt.reference_answer) == ("sort_digits", "01259")
    assert prompt.sampling == Sampling(max_tokens=12)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"group_size": 1}, "set group_size to 2 or more"),
        ({"purpose": "serve", "num_prompts": 3}, "leave `purpose` out"),
        ({"num_prompts": 3}, "leave out num_prompts"),
        ({"agent": {"name": "reasoning_cache"}}, "leave out agent"),
        ({"states": {"per_rollout": 66}}, "less than or equal to 65"),
    ],
)
def test_settings_that_do_not_fit_say_why(fields: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ProducerSettings.model_validate({"run": RUN, "source": "states", "group_size": 4, **fields})
