"""The environment `word_count`: count the words of a text. It does what `word_count` of the verifiers library does.

There are `num_examples` texts, each of `min_words` to `max_words` times "word", drawn by the same rule as in verifiers.
Only the split `train` is that data set. A text is nothing but its number of words, and among enough texts every number
comes up, so no other text of that range is sure to be unseen. The splits `validate` and `evaluate` therefore have texts
that are longer than any of `train` can be, up to twice `max_words`: the odd excesses over `max_words` are in
`validate`, the even ones in `evaluate`, by default 25 texts each. So they tell whether counting carries over to lengths
that were not trained on, which is harder than `train`: compare their rewards with those of an earlier weight version,
not with those of `train`.

The answer is expected as `<word_count>12</word_count>`. The three rewards and the parser are the same too. One turn can
get the rewards 1.3, 0.3, 0.25, 0.22, 0.2 and 0.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Final

from rollstream.environments.protocol import Split, Task
from rollstream.environments.rewards.extraction import tagged
from rollstream.environments.rewards.references import reference_of
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Message, Sampling

# Word for word that of the original, so that rollouts of both answer the same prompts.
_SYSTEM_PROMPT: Final = (
    "You are a word counting assistant. Count the number of words in the given text and provide your answer in the "
    "following format:\n\n<word_count>\n[number]\n</word_count>"
)
_TAG: Final = "word_count"
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MOST_EXAMPLES: Final = 1_000_000
_MOST_WORDS: Final = 100_000


def parse_conversation(assistant_messages: Sequence[str]) -> str | None:
    """The text inside the first pair of tags, in the newest assistant message that has a pair."""
    firsts = (next(tagged(message, _TAG), None) for message in reversed(assistant_messages))
    return next((found.strip() for found in firsts if found is not None), None)


def exact_match(sample: RewardInput) -> float:
    """1 if the answer is the number, character by character. Raises `RewardError` if the row has no number."""
    return float(parse_conversation(sample.assistant_messages) == _wanted(sample))


def format_reward(sample: RewardInput) -> float:
    """1 if both tags are there, in upper or lower case."""
    text = sample.completion.lower()
    return float("<word_count>" in text and "</word_count>" in text)


def partial_credit(sample: RewardInput) -> float:
    """1 for the right number, 0.5 if off by one, 0.2 if off by two, else 0. Raises as `exact_match` does."""
    wanted = int(_wanted(sample))
    try:
        difference = abs(int(parse_conversation(sample.assistant_messages) or "") - wanted)
    except ValueError:
        return 0.0
    return {0: 1.0, 1: 0.5, 2: 0.2}.get(difference, 0.0)


class WordCount:
    """A finite data set. `train` is all of verifiers' data set, which has only one split."""

    name = "word_count"
    rubric = Rubric(
        WeightedReward("exact_match", exact_match, weight=1.0),
        WeightedReward("format", format_reward, weight=0.2),
        WeightedReward("partial_credit", partial_credit, weight=0.1),
    )
    sampling = Sampling(temperature=1.0, max_tokens=64)

    def __init__(self, num_examples: int = 100, min_words: int = 5, max_words: int = 50, seed: int = 42) -> None:
        # Options arrive as text from the run's file.
        self._num_examples, self._seed = int(num_examples), int(seed)
        self._bounds = (int(min_words), int(max_words))
        if not 1 <= self._num_examples <= _MOST_EXAMPLES:
            raise ValueError(f"num_examples is {self._num_examples}, not 1 to {_MOST_EXAMPLES}")
        if not 1 <= self._bounds[0] <= self._bounds[1] <= _MOST_WORDS:
            least, most = self._bounds
            raise ValueError(f"min_words {least} and max_words {most} must be 1 to {_MOST_WORDS}, the lower one first")

    def counts(self) -> list[int]:
        """The number of words of each text, in the same order as in verifiers' data set."""
        chooser = random.Random(self._seed)
        return [chooser.randint(*self._bounds) for _ in range(self._num_examples)]

    def held_out_counts(self, split: Split) -> list[int]:
        """The numbers of words of the texts of `validate` or `evaluate`, each once, in an order of their own."""
        longest = self._bounds[1]
        first = longest + (1 if split == "validate" else 2)
        counts = list(range(first, 2 * longest + 1, 2))
        random.Random(self._seed).shuffle(counts)
        return counts

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """`train`: the data set in its own order; others: `held_out_counts`. The option `seed` decides."""
        return self.tasks_from(split, seed, 0)

    def tasks_from(self, split: Split, seed: int, start: int) -> Iterator[Task]:
        counts = self.counts() if split == "train" else self.held_out_counts(split)
        for row, count in enumerate(counts[start:], start):
            yield _task(str(row) if split == "train" else f"{split}/{count}", count)


def _wanted(sample: RewardInput) -> str:
    reference = reference_of(sample)
    if _NUMBER.fullmatch(reference) is None:
        raise RewardError(f"the reference answer {reference[:100]!r} is no number of words: correct the row")
    return reference


def _task(task_id: str, count: int) -> Task:
    text = " ".join(["word"] * count)
    return Task(
        task_id=task_id,
        messages=(
            Message(role="system", content=_SYSTEM_PROMPT),
            Message(role="user", content=f"Count the number of words in the following text:\n\n{text}"),
        ),
        reference_answer=str(count),
        demonstration=f"<word_count>\n{count}\n</word_count>",
        metadata={"text": text, "word_count": str(count), "task": "word-count"},
    )
