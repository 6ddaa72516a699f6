"""The texts of reasoning in cycles: the document's table, what is known of a turn, the original's lines."""

from dataclasses import replace
from typing import Any

import pytest

from rollstream.rc_actor.texts import texts_of
from rollstream.rc_actor.training_text import NOT_TRAINED, TrainingText, group_of
from rollstream.schemas.errors import UnusableRowError
from rollstream.schemas.rollout import FinishReason
from tests.harness.builders import a_generated, a_prompt, a_text_turn, a_turn
from tests.harness.cycles import OPTIONS, cycle_turns, scored_by_turns

FIELDS = {
    "text", "n_predicted", "reward", "logprobs", "ref_logprobs", "input_ids", "labels", "group_id", "finished",
    "prompt_tokens", "output_tokens", "visual_features", "metadata",
}  # fmt: skip
"""Of the original's class."""
ORIGINAL: dict[str, Any] = {
    "text": "1+1=2", "n_predicted": 1, "reward": 1.0, "logprobs": [-0.5], "ref_logprobs": [], "input_ids": [7, 8],
    "labels": [-100, 8], "group_id": "0_17", "finished": True, "prompt_tokens": 1, "output_tokens": 1,
    "visual_features": None, "output_text": "2", "metadata": {"model_version": 0, "rollout_index": 0},
}  # fmt: skip
"""A text as the fork wrote it, with the field that it declares beside the property."""
TABLE = [
    (0, "reasoning", 1), (1, "summarization", 1), (2, "reasoning", 2), (3, "summarization", 2), (4, "reasoning", 3),
    (5, "summarization", 3),
]  # fmt: skip


def test_three_cycles_are_the_six_rows_of_the_document_and_a_resume_state_only_if_asked() -> None:
    scoring = scored_by_turns({0: 0.0, 2: 0.5, 4: 1.0})
    texts = texts_of(a_generated(turns=cycle_turns(3)), scoring, OPTIONS)
    marks = [tuple(text.metadata[name] for name in ("cycle_step", "turn_type", "turn_number")) for text in texts]
    assert marks == TABLE
    assert [text.reward for text in texts] == [0.0, 0.0, 0.5, 0.0, 1.0, 0.0]
    assert [text.metadata["has_reward"] for text in texts] == [True, False] * 3
    assert all(set(text.model_dump()) == FIELDS for text in texts)
    more = texts_of(a_generated(turns=cycle_turns(3)), scoring, OPTIONS, with_resume_state=True)
    assert more[:-1] == texts
    assert (more[-1].text, more[-1].output_text) == ("P:52910= S:s3", "")
    assert more[-1].metadata["resume_state"] is True
    assert [more[-1].metadata[name] for name in ("cycle_step", "turn_number")] == [6, 4]
    assert not more[-1].input_ids


def test_a_text_is_the_filled_prompt_and_the_answer_with_the_engines_tokens() -> None:
    last = texts_of(a_generated(turns=cycle_turns(2)), None, OPTIONS)[2]
    assert (last.prompt_text, last.output_text) == ("P:52910= S:s1", "r2")
    assert last.n_predicted == len("r2")
    assert (last.input_ids, last.labels) == (
        [9, 6, 13, 5, 4, 14, 4, 5, 6, 9, 13, 1],
        [NOT_TRAINED] * 6 + [4, 5, 6, 9, 13, 1],
    )
    assert last.logprobs == [-0.125 * number for number in range(1, 7)]
    assert (last.prompt_tokens, last.output_tokens, last.finished) == (6, 6, True)
    assert last.metadata["original_problem"] == "52910="
    assert last.metadata["answer"] == "01259"


def test_an_opened_tag_is_prompt_and_what_was_thought_apart_is_answer() -> None:
    tagged = replace(OPTIONS, use_think_tags=True)
    first = a_turn(turn_type="reasoning", turn_number=1, text="four", reasoning="two and two")
    text = texts_of(a_generated(turns=(first,)), None, tagged)[0]
    assert text.prompt_text.endswith("S:<think>")
    assert text.output_text == "<think>two and two</think>four"


def test_the_version_of_a_text_is_its_oldest_and_none_where_a_server_names_none() -> None:
    turns = (a_turn((4, 1), spans=[(3, 0, 1), (5, 1, 2)], turn_type="reasoning", turn_number=1),)
    text = texts_of(a_generated(turns=turns), None, OPTIONS)[0]
    assert (text.metadata["model_version"], text.metadata["model_version_newest"]) == (3, 5)
    silent = a_text_turn(turn_type="reasoning", turn_number=1, text="four", finish_reason=FinishReason.LENGTH)
    text = texts_of(a_generated(turns=(silent,)), None, OPTIONS)[0]
    assert text.metadata["model_version"] is None
    assert (text.metadata["has_token_ids"], text.input_ids, text.labels, text.logprobs) == (False, [], [], [])
    assert (text.prompt_tokens, text.output_tokens, text.finished) == (6, 6, False)


def test_a_turn_whose_scoring_failed_has_no_reward_and_no_other_takes_its_place() -> None:
    texts = texts_of(a_generated(turns=cycle_turns(3)), scored_by_turns({0: 1.0, 2: None, 4: 1.0}), OPTIONS)
    assert [text.reward for text in texts if text.metadata["turn_type"] == "reasoning"] == [1.0, None, 1.0]
    alone = texts_of(a_generated(turns=cycle_turns(2)), scored_by_turns({}, reward=0.5), OPTIONS)
    assert [text.reward for text in alone] == [None, 0.0, 0.5, 0.0]
    assert [text.reward for text in texts_of(a_generated(turns=cycle_turns(1)), None, OPTIONS)] == [None, 0.0]


def test_samples_of_a_problem_differ_in_sample_id_and_attempts_in_rollout_index() -> None:
    prompt = a_prompt(group_size=6)
    rows = [
        texts_of(a_generated(index, prompt=prompt, turns=cycle_turns(1)), None, OPTIONS, attempts=2)[0]
        for index in range(6)
    ]
    found = [(text.metadata["sample_id"], text.metadata["rollout_index"]) for text in rows]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert {text.group_id for text in rows} == {prompt.group_id}


def test_the_problem_of_a_text_is_that_of_its_data_set_without_the_words_around_it() -> None:
    prompt = a_prompt(metadata={"dataset_name": "sums", "bare_problem": "52910"})
    metadata = texts_of(a_generated(prompt=prompt, turns=cycle_turns(1)), None, OPTIONS)[0].metadata
    assert (metadata["original_problem"], metadata["dataset_name"]) == ("52910", "sums")


def test_a_rollout_of_another_agent_has_no_texts() -> None:
    with pytest.raises(UnusableRowError, match="no rollout in cycles: a turn of type 'answer'"):
        texts_of(a_generated(), None, OPTIONS)


def test_a_line_of_the_original_loads_and_ours_has_its_fields_and_types() -> None:
    text = group_of([ORIGINAL])[0]
    assert (text.prompt_text, text.output_text) == ("1+1=", "2")
    assert text.model_dump() == {name: value for name, value in ORIGINAL.items() if name != "output_text"}
    ours = texts_of(a_generated(turns=cycle_turns(3)), scored_by_turns({0: 0.0, 2: 0.5, 4: 1.0}), OPTIONS)[
        0
    ].model_dump()
    assert {name: type(value) for name, value in ours.items()} == {
        name: type(value) for name, value in text.model_dump().items()
    }


def test_without_an_answer_the_output_is_nothing_and_not_the_whole_text() -> None:
    text = TrainingText(text="1+1=", n_predicted=0)
    assert (text.prompt_text, text.output_text) == ("1+1=", "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"n_predicted": 9}, "n_predicted 9 is above the 5 characters"),
        ({"n_predicted": -1}, "0.n_predicted: .*greater than or equal to 0"),
        ({"labels": [8]}, "1 labels but 2 input_ids"),
        ({"logprobs": [None]}, "0.logprobs.0: "),
        ({"reward": 1e10}, "0.reward: "),
    ],
)
def test_a_text_that_contradicts_itself_is_refused_by_field(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableRowError, match=why):
        group_of([ORIGINAL | change])
    with pytest.raises(UnusableRowError, match="no group of texts"):
        group_of(ORIGINAL)
