"""The environment `reasoning_gym`: tasks in splits, the library's scores, and answers that must not be run."""

import re
import sys
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.procedural.guard import EVALUATED, MAX_CHARACTERS, is_harmless
from rollstream.environments.procedural.texts import entry_metadata, entry_text
from rollstream.environments.protocol import Environment, Split, Task, task_set_of
from rollstream.environments.rubric import RewardInput
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BrokenEnvironmentError, RewardError, UnknownEnvironmentError


@cache
def made(dataset: str, **options: str) -> Environment:
    declared = {"reasoning_gym": Declaration(options={"dataset": dataset, **options})}
    return load_environment("reasoning_gym", declared)


def tasks(dataset: str, split: Split, count: int, seed: int = 1, **options: str) -> list[Task]:
    return list(islice(made(dataset, **options).tasks(split, seed), count))


@cache
def first_task(dataset: str) -> Task:
    return tasks(dataset, "train", 1)[0]


def score(dataset: str, task: Task, completion: str) -> float:
    sample = RewardInput(
        completion=completion,
        assistant_messages=(completion,),
        reference_answer=task.reference_answer,
        metadata=task.metadata,
    )
    reward, components = made(dataset).rubric.score(sample)
    assert components == {"score": reward}
    return reward


# The last two import more of their modules when they are made or asked.
DATASETS = ["chain_sum", "spell_backward", "knights_knaves", "mini_sudoku", "arc_1d", "gsm_symbolic"]


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_librarys_own_answer_is_right_and_no_answer_is_none(dataset: str) -> None:
    for task in tasks(dataset, "train", 5):
        assert score(dataset, task, f"I think <answer>no</answer> but <answer>{task.reference_answer}</answer>") == 1.0
        assert task.demonstration is not None
        assert score(dataset, task, task.demonstration) == 1.0
        assert score(dataset, task, str(task.reference_answer)) == 0.0
        assert score(dataset, task, "") == 0.0
        assert score(dataset, task, "<answer>" * 12_500) == 0.0
        assert score(dataset, task, f"<answer>{'x' * 100_000}</answer>") < 0.5


def test_a_data_set_whose_questions_have_many_right_answers_names_none() -> None:
    task = first_task("graph_color")
    assert task.reference_answer is None
    assert task.demonstration is None
    assert score("graph_color", task, "<answer>no</answer>") == 0.0


def test_an_answer_that_the_librarys_scorer_can_not_read_is_wrong_and_such_a_row_unscored() -> None:
    """These scorers raise for it."""
    for dataset, answer in (("prime_factorization", "no"), ("prime_factorization", "7/0"), ("coin_flip", "1.5e999")):
        assert score(dataset, first_task(dataset), f"<answer>{answer}</answer>") == 0.0
    metadata = first_task("prime_factorization").metadata
    task = Task(task_id="0", messages=(), reference_answer="a prime", metadata=metadata)
    for answer in ("7", "a prime"):
        with pytest.raises(RewardError, match="raised ValueError"):
            score("prime_factorization", task, f"<answer>{answer}</answer>")


def test_partial_scores_are_kept() -> None:
    task = first_task("leg_counting")
    assert score("leg_counting", task, f"<answer>{task.reference_answer} legs</answer>") == pytest.approx(
        len(task.reference_answer or "") / len(f"{task.reference_answer} legs")
    )


def test_no_question_is_in_two_splits_whatever_the_seeds() -> None:
    splits: dict[Split, int] = {"train": 1, "validate": 2, "evaluate": 3}
    asked = {
        split: {task.messages[-1].content for task in tasks("chain_sum", split, 200, seed)}
        for split, seed in splits.items()
    }
    assert min(len(questions) for questions in asked.values()) > 150
    assert not asked["train"] & asked["validate"]
    assert not asked["train"] & asked["evaluate"]
    assert not asked["validate"] & asked["evaluate"]


def test_a_seed_gives_the_same_tasks_again_and_another_seed_others() -> None:
    assert tasks("chain_sum", "train", 30) == tasks("chain_sum", "train", 30)
    first, second = ({task.messages[-1].content for task in tasks("chain_sum", "train", 600, seed)} for seed in (1, 2))
    assert len(first & second) < 30, "neighboring seeds must not share their rows"


def test_options_of_the_file_reach_the_data_set_with_their_types() -> None:
    for task in tasks("chain_sum", "train", 20, min_terms="3", max_terms="3", allow_negation="true"):
        question = task.messages[-1].content
        assert question.count(" + ") + question.count(" - ") == 2


def test_the_tasks_are_named_by_what_decides_them_and_without_making_one(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {
        (split, seed, dataset, *options.values()): task_set_of(made(dataset, **options), split, seed)
        for split in ("train", "evaluate")
        for seed in (1, 2)
        for dataset in ("chain_sum", "spell_backward")
        for options in ({}, {"size": "20"})
    }
    assert len({one.identity for one in named.values() if one is not None}) == len(named) == 16
    assert named["train", 1, "chain_sum", "20"] == task_set_of(made("chain_sum", size="20"), "train", 1)
    assert [one.size for one in named.values() if one is not None] == [None, 20] * 8
    before = task_set_of(made("chain_sum"), "train", 1)
    monkeypatch.setattr("rollstream.environments.reasoning_gym.version", lambda name: "0.1.26")
    assert task_set_of(made("chain_sum"), "train", 1) != before


def test_a_size_bounds_the_tasks_of_a_split() -> None:
    environment = made("chain_sum", size="20")
    assert [len(list(environment.tasks(split, 1))) for split in ("train", "validate", "evaluate")] == [20] * 3
    assert list(environment.tasks("train", 1)) == tasks("chain_sum", "train", 20)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, r"its options \(none\) as they are: option `dataset` must name a data set"),
        ({"dataset": "no_such"}, "dataset must be one of reasoning-gym's: ab, acre, .*, zebra_puzzles"),
        ({"dataset": "../chain_sum"}, "dataset must be one of"),
        ({"dataset": "composite"}, "dataset must be one of"),
        ({"dataset": "chain_sum", "terms": "3"}, "has no option terms; it has allow_negation, "),
        ({"dataset": "chain_sum", "seed": "3"}, "has no option seed"),
        ({"dataset": "chain_sum", "size": "0"}, "`size` must be at least 1"),
        ({"dataset": "chain_sum", "size": "many"}, "invalid literal for int"),
        ({"dataset": "chain_sum", "min_terms": "9", "max_terms": "2"}, "refuses its options"),
        ({"dataset": "chain_sum", "min_terms": "many"}, "refuses its options"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=why):
        load_environment("reasoning_gym", {"reasoning_gym": Declaration(options=options)})


@pytest.mark.skipif("pycosat" in sys.modules, reason="somebody imported pycosat")
def test_the_one_data_set_that_needs_pycosat_says_so_where_it_is_missing() -> None:
    try:
        import pycosat  # noqa: F401
    except ImportError:
        with pytest.raises(BrokenEnvironmentError, match="can't be made: this dataset needs 'pycosat'"):
            made("zebra_puzzles")
    else:
        assert len(tasks("zebra_puzzles", "train", 1)) == 1


def test_a_data_set_is_made_without_the_others_and_without_what_they_import() -> None:
    made("chain_sum")
    assert "reasoning_gym.arithmetic.chain_sum" in sys.modules
    assert not {"reasoning_gym", "reasoning_gym.arithmetic", "reasoning_gym.algorithmic"} & set(sys.modules)


@pytest.mark.parametrize(
    "dataset", ["spiral_matrix", "string_insertion", "n_queens", "countdown", "simple_integration"]
)
@pytest.mark.parametrize(
    "answer",
    [
        "open({!r}, 'w')",
        "__import__('pathlib').Path({!r}).touch()",
        "[open({!r}, 'w') for _ in [0]]",
        "(lambda: open({!r}, 'w'))()",
        "f'{{open({!r}, chr(119))}}'",
    ],
)
def test_an_answer_that_is_a_program_never_runs(dataset: str, answer: str, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    task = first_task(dataset)
    assert score(dataset, task, f"<answer>{answer.format(str(trace))}</answer>") in (0.0, 0.01)
    assert not trace.exists()


def test_an_answer_as_a_plain_list_or_expression_still_counts() -> None:
    spiral = first_task("spiral_matrix")
    numbers = [int(number) for number in (spiral.reference_answer or "").split()]
    assert score("spiral_matrix", spiral, f"<answer>{numbers}</answer>") == 0.1
    integral = first_task("simple_integration")
    assert score("simple_integration", integral, f"<answer>{integral.reference_answer}</answer>") == 1.0
    queens = first_task("n_queens")
    assert score("n_queens", queens, f"<answer>{queens.reference_answer}</answer>") == 1.0


@pytest.mark.parametrize(
    ("dataset", "changed"),
    [("simple_integration", {"integrand": "exit()"}), ("bitwise_arithmetic", {"problem": "exit()"})],
)
def test_a_record_whose_own_text_is_a_program_is_unscored(dataset: str, changed: dict[str, str]) -> None:
    task = tasks(dataset, "train", 1)[0]
    task.metadata["entry_metadata"] = entry_text({**entry_metadata(task.metadata["entry_metadata"]), **changed})
    with pytest.raises(RewardError, match="is no plain expression"):
        score(dataset, task, "<answer>1</answer>")


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("[[1, 2], [3, 4]]", True),
        ("['a', 'b']", True),
        ("(1 + 2) * 3 / x**2", True),
        ("sin(2*x) + sqrt(3)*log(x) + C", True),
        ("-0x1f & 7", True),
        ("(0x1 << 0x3) + 2", True),
        ("1 << 10**11", False),
        ("1 << 1025", False),
        ("[0] * 10**10", False),
        ("10**10 * 'a'", False),
        ("exit()", False),
        ("x.y", False),
        ("eval('1')", False),
        ("sin.__class__", False),
        ("[x for x in (1,)]", False),
        ("f'{x}'", False),
        ("lambda: 0", False),
        ("(x := 1)", False),
        ("exp(base=2)", False),
        ("x[0]", False),
        ("(" * 500 + "1" + ")" * 500, False),
        ("1+" * MAX_CHARACTERS + "1", False),
        ("", False),
    ],
)
def test_only_plain_expressions_are_evaluated(text: str, harmless: bool) -> None:
    assert is_harmless(text) is harmless


def test_every_data_set_that_evaluates_is_guarded() -> None:
    """Their source is searched: another version of the library may evaluate in other places."""
    root = Path(str(find_spec("reasoning_gym").origin)).parent  # type: ignore[union-attr]
    evaluating = set()
    for path in root.glob("*/*.py"):
        text = path.read_text()
        name = re.search(r'^DATASET_NAME = "(\w+)"', text, re.MULTILINE)
        if name and re.search(r"\b(eval|exec|parse_expr|sympify|literal_eval)\(", text):
            evaluating.add(name[1])
    # These evaluate what they make themselves, and propositional_logic has a parser of its own.
    assert evaluating - {"basic_arithmetic", "codeio", "propositional_logic"} == set(EVALUATED)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"dataset": "chain_sum", "entry_metadata": "{}"}, "no reference answer"),
        ({"dataset": "ab"}, "is of the dataset 'ab', not 'chain_sum'"),
        ({"dataset": "chain_sum"}, "is not what this environment writes"),
        ({"dataset": "chain_sum", "entry_metadata": "[]"}, "is no JSON object"),
        ({"dataset": "chain_sum", "entry_metadata": '{"a": {"$pairs": [1]}}'}, "is not what this environment writes"),
    ],
)
def test_a_record_that_is_no_entry_is_unscored(metadata: dict[str, str], why: str) -> None:
    task = Task(task_id="0", messages=(), reference_answer=None if "reference" in why else "1", metadata=metadata)
    for completion in ("<answer>1</answer>", ""):
        with pytest.raises(RewardError, match=why):
            score("chain_sum", task, completion)


def test_an_entry_comes_back_from_its_text_with_its_types() -> None:
    entry: dict[str, Any] = {
        "board": ((0, 1), [2, (3,)]),
        "by_number": {1: "a", 2: {"$odd": (1,)}},
        "names": {"b", "a"},
        "nothing": None,
        "share": 0.25,
    }
    assert entry_metadata(entry_text(entry)) == entry
