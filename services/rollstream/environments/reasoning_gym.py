"""The environment `reasoning_gym`: tasks of any data set of the library reasoning-gym, by its name, and its scores.

    [environments.reasoning_gym]
    options = { dataset = "chain_sum", min_terms = "2", max_terms = "4" }

`size` bounds the tasks of a split; without it they have no end. Some are slow to make (`countdown` takes 25 ms each,
`knight_swap` half a second), and a producer makes all tasks of a split of up to 10,000 when it starts, to shuffle them;
of a larger or endless one it makes only those that it asks, in their own order (`task_set`). To go on at any task, at
most the 49 before it are made again, with those of other splits among them (`tasks_from`).
Further options go to the data set; those that are no text are written as JSON. Several data sets at once: an own
environment of the same class for each, e.g. `path = "rollstream.environments.reasoning_gym.ReasoningGym"`.
The answer is what the last `<answer>…</answer>` of a completion holds, as the system prompt asks. Scores are the
library's own, some of them partial (0.01 for an answer at all, say); no answer is 0, and so is one over which the
library's scorer raises, unless it does so over the right answer too, or the data set names none.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import count, islice
from typing import Any, Final

from rollstream.environments.procedural.guard import guarded
from rollstream.environments.procedural.loading import load_dataset
from rollstream.environments.procedural.texts import entry_metadata, entry_text, typed_options
from rollstream.environments.protocol import Split, Task, TaskSet, split_of
from rollstream.environments.rewards.extraction import last_tagged
from rollstream.environments.rubric import RewardInput, Rubric, WeightedReward
from rollstream.schemas.errors import RewardError
from rollstream.schemas.prompt import Message, Sampling

SYSTEM_PROMPT: Final = (
    "Think about the question step by step. Then write the answer, and nothing else, between the tags <answer> and "
    "</answer>. If the question shows how answers are written, write yours the same way."
)
_DISTRIBUTION: Final = "reasoning-gym"
_BLOCK_TASKS: Final = 50
_DATASET_TASKS: Final = 500
_MOST_EMPTY_DATASETS: Final = 4


class ReasoningGym:
    """A data set with few different questions repeats them."""

    name = "reasoning_gym"
    sampling = Sampling(temperature=1.0, max_tokens=1024)

    def __init__(self, dataset: str = "", size: str = "", **options: str) -> None:
        if not dataset:
            raise ValueError("option `dataset` must name a data set of reasoning-gym, e.g. chain_sum")
        # Options arrive as text from the run's file.
        self._size = int(size) if size else None
        if self._size is not None and self._size < 1:
            raise ValueError("option `size` must be at least 1")
        self._dataset = dataset
        self._library = load_dataset(dataset)
        self._options = typed_options(self._library.config, options)
        self._scorer = self._made(seed=0, size=1)
        self.rubric = Rubric(WeightedReward("score", self._score))

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        return self.tasks_from(split, seed, 0)

    def tasks_from(self, split: Split, seed: int, start: int) -> Iterator[Task]:
        """Tasks in blocks of 50 with seeds of their own. The question decides the split, so none is in two.

        It ends after `size` tasks, or if 2,000 questions in a row are of other splits: there are too few of them.
        """
        most = None if self._size is None else max(self._size - start, 0)
        return islice(self._endless(split, seed, start), most)

    def task_set(self, split: Split, seed: int) -> TaskSet:
        """What decides the tasks: the library's version and data set, the options, the split and the seed."""
        decisive = [version(_DISTRIBUTION), self._options, self._size, SYSTEM_PROMPT, _BLOCK_TASKS, _DATASET_TASKS]
        decisive += [split, seed]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        return TaskSet(f"{self.name}/{self._dataset}/{split}@{digest[:12]}", self._size)

    def _endless(self, split: Split, seed: int, start: int) -> Iterator[Task]:
        block, to_skip = divmod(start, _BLOCK_TASKS)
        while True:
            row = -1
            for row, entry in enumerate(islice(self._entries_in(split, f"{seed}/{block}"), _BLOCK_TASKS)):
                if row >= to_skip:
                    yield self._task(f"{split}/{seed}/{block * _BLOCK_TASKS + row}", entry)
            if row + 1 < _BLOCK_TASKS:
                return
            block, to_skip = block + 1, 0

    def _entries_in(self, split: Split, block: str) -> Iterator[dict[str, Any]]:
        """The entries of a split, of one data set after the other with seeds of this block."""
        num_empty = 0
        for number in count():
            is_empty = True
            for entry in self._entries(_seed_of(f"{block}/{number}")):
                if split_of(entry["question"]) == split:
                    is_empty = False
                    yield entry
            num_empty = num_empty + 1 if is_empty else 0
            if num_empty == _MOST_EMPTY_DATASETS:
                return

    def _entries(self, seed: int) -> Iterator[dict[str, Any]]:
        made = self._made(seed=seed, size=_DATASET_TASKS)
        for row in range(_DATASET_TASKS):
            with self._library.entered():
                entry: dict[str, Any] = made[row]
            yield entry

    def _made(self, *, seed: int, size: int) -> Any:
        """The data set. Raises `ValueError` for options that it refuses."""
        try:
            with self._library.entered():
                return self._library.dataset(config=self._library.config(**self._options, seed=seed, size=size))
        except (AssertionError, TypeError) as error:
            raise ValueError(f"the dataset refuses its options: {error}") from error

    def _task(self, task_id: str, entry: Mapping[str, Any]) -> Task:
        # Some questions have many right answers; those data sets name none.
        answer = None if entry["answer"] is None else str(entry["answer"])
        return Task(
            task_id=task_id,
            messages=(Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=entry["question"])),
            reference_answer=answer,
            demonstration=None if answer is None else f"<answer>{answer}</answer>",
            metadata={
                "dataset": self._dataset,
                "question": entry["question"],
                "entry_metadata": entry_text(entry["metadata"]),
                "has_answer": str(answer is not None).lower(),
            },
        )

    def _score(self, sample: RewardInput) -> float:
        # First the row: one that can't be scored must not get a 0 because there is no answer either.
        entry = self._entry(sample)
        answer = last_tagged(sample.completion)
        if answer is None:
            return 0.0
        readable = guarded(self._dataset, answer.strip(), entry)
        try:
            return self._library_score(readable, entry)
        except MemoryError:
            raise
        except Exception:
            # Some scorers raise for an answer in another form. Unless they do so for the right one too, it is wrong.
            if entry["answer"] is None:
                raise
            self._library_score(guarded(self._dataset, entry["answer"], entry), entry)
            return 0.0

    def _library_score(self, answer: str, entry: dict[str, Any]) -> float:
        with self._library.entered():
            return float(self._scorer.score_answer(answer, entry))

    def _entry(self, sample: RewardInput) -> dict[str, Any]:
        row = sample.metadata
        if row.get("dataset") != self._dataset:
            raise RewardError(f"the row is of the dataset {row.get('dataset', '')[:60]!r}, not {self._dataset!r}")
        if sample.reference_answer is None and row.get("has_answer") != "false":
            raise RewardError("the row has no reference answer, so nothing can be compared: add it")
        metadata = entry_metadata(row.get("entry_metadata", ""))
        return {"question": row.get("question", ""), "answer": sample.reference_answer, "metadata": metadata}


def _seed_of(name: str) -> int:
    """Far from those of other names: the data sets add the row to it."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
