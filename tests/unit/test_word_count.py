"""word_count, exactly as the study that it comes from."""

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rewards.extraction import last_tagged
from rollstream.environments.rubric import RewardInput
from rollstream.environments.word_count import WordCount, parse_conversation
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import RewardError, UnknownEnvironmentError


def reward(completion: str, answer: str = "45") -> float:
    sample = RewardInput(completion=completion, assistant_messages=(completion,), reference_answer=answer)
    return round(WordCount.rubric.score(sample)[0], 6)


def tagged(text: str) -> str:
    return f"<word_count>\n{text}\n</word_count>"


def test_seed_42_gives_the_counts_of_the_original() -> None:
    expected = [45, 12, 6, 22, 20, 19, 13, 11, 48, 39, 10, 42, 32, 7, 6, 10, 18, 19, 37, 43]
    assert WordCount(num_examples=20).counts() == expected


def test_train_is_the_whole_data_set_of_the_original_in_its_order_whatever_the_seed() -> None:
    counts = WordCount().counts()
    assert len(counts) == 100
    for seed in (0, 7):
        tasks = list(load_environment("word_count").tasks("train", seed))
        assert [task.reference_answer for task in tasks] == [str(count) for count in counts]
        assert [task.task_id for task in tasks] == [str(row) for row in range(100)]


def test_the_prompts_are_those_of_the_original() -> None:
    first = next(load_environment("word_count").tasks("train", 0))
    assert [message.role for message in first.messages] == ["system", "user"]
    assert first.messages[0].content == (
        "You are a word counting assistant. Count the number of words in the given text and provide your answer in the "
        "following format:\n\n<word_count>\n[number]\n</word_count>"
    )
    assert first.messages[1].content == (
        "Count the number of words in the following text:\n\n" + " ".join(["word"] * 45)
    )
    assert (first.reference_answer, first.metadata["word_count"], first.metadata["task"]) == ("45", "45", "word-count")


@pytest.mark.parametrize("options", [{}, {"seed": "7"}, {"num_examples": "1000", "max_words": "9"}])
def test_no_text_is_in_two_splits(options: dict[str, str]) -> None:
    environment = load_environment("word_count", {"word_count": Declaration(options=options)})
    texts = {
        split: [task.metadata["text"] for task in environment.tasks(split, 0)]
        for split in ("train", "validate", "evaluate")
    }
    assert not set(texts["train"]) & {*texts["validate"], *texts["evaluate"]}
    assert not set(texts["validate"]) & set(texts["evaluate"])
    longest = int(options.get("max_words", "50"))
    lengths = {split: sorted(len(text.split()) for text in texts[split]) for split in ("validate", "evaluate")}
    assert lengths["validate"] == list(range(longest + 1, 2 * longest + 1, 2))
    assert lengths["evaluate"] == list(range(longest + 2, 2 * longest + 1, 2))


def test_every_demonstration_gets_the_whole_reward() -> None:
    for split in ("train", "validate", "evaluate"):
        for task in load_environment("word_count").tasks(split, 0):
            assert reward(task.demonstration or "", task.reference_answer or "") == 1.3


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


@pytest.mark.parametrize("reference", [None, "", " "])
@pytest.mark.parametrize("completion", ["45", tagged("45"), ""])
def test_a_row_without_a_number_to_compare_with_is_unscored(completion: str, reference: str | None) -> None:
    sample = RewardInput(completion=completion, assistant_messages=(completion,), reference_answer=reference)
    with pytest.raises(RewardError, match="no reference answer"):
        WordCount.rubric.score(sample)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        # Values of options are in no message.
        ({"num_examples": "0"}, r"num_examples is \*\*\*, not 1 to 1000000"),
        ({"num_examples": "2000000000"}, r"num_examples is \*\*\*, not 1 to"),
        ({"min_words": "9", "max_words": "5"}, "max_words .* must be 1 to 100000, the lower one first"),
        ({"min_words": "-5"}, "min_words .* and max_words 50 must be"),
        ({"max_words": "1000000000"}, "min_words 5 and max_words .* must be"),
        ({"num_examples": "many"}, "invalid literal for int"),
    ],
)
def test_numbers_that_make_no_data_set_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=why):
        load_environment("word_count", {"word_count": Declaration(options=options)})


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
        ([tagged("1") + tagged("2"), tagged("3") + tagged("4")], "3"),
        (["<word_count>  4 \n words </word_count>"], "4 \n words"),
    ],
)
def test_a_conversation_is_parsed_at_the_first_tags_of_its_newest_tagged_message(
    messages: list[str], expected: str | None
) -> None:
    assert parse_conversation(messages) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tagged("1") + tagged("2"), "\n2\n"),
        (tagged("1") + "<word_count>2", "\n1\n"),
        ("<word_count>1<word_count> 2 </word_count>", "1<word_count> 2 "),
        ("</word_count>1<word_count>", None),
        ("", None),
    ],
)
def test_a_text_is_parsed_at_its_last_tags(text: str, expected: str | None) -> None:
    assert last_tagged(text, "word_count") == expected
