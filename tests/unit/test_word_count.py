"""word_count, exactly as the study that it comes from."""

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rubric import RewardInput
from rollstream.environments.word_count import WordCount, parse_answer, parse_conversation
from rollstream.process.declared import Declaration


def reward(completion: str, answer: str = "45") -> float:
    sample = RewardInput(completion=completion, assistant_messages=(completion,), reference_answer=answer)
    return round(WordCount.rubric.score(sample)[0], 6)


def tagged(text: str) -> str:
    return f"<word_count>\n{text}\n</word_count>"


def test_seed_42_gives_the_counts_of_the_original() -> None:
    expected = [45, 12, 6, 22, 20, 19, 13, 11, 48, 39, 10, 42, 32, 7, 6, 10, 18, 19, 37, 43]
    assert WordCount(num_examples=20).counts() == expected


def test_a_prompt_holds_as_many_words_as_its_answer_says() -> None:
    for task in load_environment("word_count", {"word_count": Declaration(options={"num_examples": "20"})}).tasks(
        "train", 0
    ):
        question = task.messages[-1].content
        assert question.startswith("Count the number of words in the following text:\n\nword word")
        assert len(question.split("\n\n")[1].split()) == int(task.reference_answer or "")


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (tagged("45"), 1.3),
        (tagged("44"), 0.25),
        (tagged("47"), 0.22),
        (tagged("40"), 0.2),
        (tagged("045"), 0.3),
        (tagged("45 words"), 0.2),
        ("45", 0.0),
        ("<word_count>45", 0.0),
    ],
)
def test_every_reachable_reward(completion: str, expected: float) -> None:
    assert reward(completion) == expected


def test_no_answer_is_no_match_where_none_is_known() -> None:
    untagged = RewardInput(completion="45", assistant_messages=("45",), reference_answer=None)
    assert WordCount.rubric.score(untagged)[0] == 0.0


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([tagged("1")], "1"),
        ([tagged("1") + tagged("2")], "1"),
        ([tagged("1"), tagged("2")], "2"),
        ([tagged("1"), "no tags"], "1"),
        (["no tags"], None),
        ([], None),
        (["<word_count>3</word_count>"], "3"),
        (["<word_count>  4 \n words </word_count>"], "4 \n words"),
    ],
)
def test_a_conversation_is_parsed_at_the_first_tags_of_its_newest_tagged_message(
    messages: list[str], expected: str | None
) -> None:
    assert parse_conversation(messages) == expected


def test_a_text_is_parsed_at_its_last_tags() -> None:
    assert parse_answer(tagged("1") + tagged("2")) == "2"
