"""Rewards by data source, multiple choice and structured output: golden tables, each with the traps of its rule."""

import json
import socket
from typing import Any

import numpy as np
import pytest

from rollstream.environments.load import load_environment
from rollstream.environments.rewards.letters import chosen_letter
from rollstream.environments.rewards.registry import SOURCES, default_compute_score, score_by_source, source_of
from rollstream.schemas.errors import RewardError
from tests.harness.reward_inputs import an_answer

LONG = "word " * 20_000
"""100 kB."""


def score(source: str, completion: str, reference: str) -> float:
    return score_by_source(an_answer(completion, reference, data_source=source))


SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
GOLDEN: dict[str, tuple[list[str], list[tuple[str, str, float]]]] = {
    "the last number after four hashes near the end": (
        ["openai/gsm8k"],
        [
            ("6 * 12 = 72\n#### 72", "72", 1),
            ("#### 1,234", "1234", 1),
            ("#### 1234", "1,234", 1),
            ("#### -3.5", "-3.5", 1),
            ("#### 71\n#### 72", "72", 1),
            ("#### 72\n#### 71", "72", 0),
            ("#### 72.", "72", 0),
            ("#### 72.0", "72", 0),
            ("####72", "72", 0),
            ("#### $72", "72", 0),
            ("The answer is 72", "72", 0),
            ("#### ٧٢", "72", 0),
            ("#### 72" + " " * 293, "72", 1),
            ("#### 72" + " " * 294, "72", 0),
            ("", "72", 0),
            (LONG + "#### 72", "72", 1),
            ("#### 72" + LONG, "72", 0),
        ],
    ),
    "the text in the last box": (
        ["lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"],
        [
            (r"so \boxed{5}", "5", 1),
            (r"\boxed{4} or rather \boxed{5}", "5", 1),
            (r"\boxed{5} or rather \boxed{4}", "5", 0),
            (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}", 1),
            (r"\boxed{\dfrac{1}{2}}", r"\frac12", 1),
            (r"\boxed{1/2}", r"\frac{1}{2}", 1),
            (r"\boxed{0.5}", r"\frac{1}{2}", 1),
            (r"\boxed{.5}", "0.5", 1),
            (r"\boxed{50\%}", "50", 1),
            (r"\boxed{x = 5}", "5", 1),
            (r"\boxed{90^\circ}", "90", 1),
            (r"\boxed{\left( 1, 2 \right)}", "(1,2)", 1),
            (r"\boxed{12\text{ cm}}", "12", 1),
            (r"\boxed{\sqrt3}", r"\sqrt{3}", 1),
            (r"\fbox{5}", "5", 0),
            (r"\boxed{5} is \fbox{6}", "5", 1),
            (r"\boxed {5}", "5", 0),
            (r"$\boxed 5$ and \boxed{6}", "5", 1),
            ("so \\boxed 5\nDone.", "5", 0),
            (r"\boxed{50%}", "50", 0),
            (r"\boxed{=5}", "5", 1),
            (r"\boxed{ x = 5}", "5", 0),
            (r"\boxed{\sqrt 3}", r"\sqrt{3}", 0),
            (r"\boxed{\frac1{72}}", r"\frac{1}{72}", 1),
            (r"\boxed{01/2}", r"\frac{1}{2}", 0),
            (r"$\boxed 5$", "5", 1),
            (r"\boxed{1,234}", "1234", 0),
            (r"\boxed{2/4}", r"\frac{1}{2}", 0),
            ("\\boxed{\N{ARABIC-INDIC DIGIT FIVE}}", "5", 0),
            (r"\boxed{5", "5", 0),
            (r"\boxed{5} and then \boxed{6", "5", 0),
            (r"\boxed{}", "5", 0),
            ("5", "5", 0),
            ("", "5", 0),
            (LONG + r"\boxed{5}" + LONG, "5", 1),
        ],
    ),
    "the last answer line and no box elsewhere": (
        ["math_dapo", "math", "math_dapo_reasoning", "aime2024", "aime_2025"],
        [
            ("Answer: 34", "34", 1),
            ("answer : 34", "34", 1),
            ("Answer: 33\nAnswer: 34", "34", 1),
            ("Answer: 34\nAnswer: 33", "34", -1),
            ("Answer: $34$", "34", 1),
            ("Answer: x = 34", "34", 1),
            ("Answer: 12,345", "12345", 1),
            (r"Answer: \boxed{34}", "34", 1),
            (r"Answer: \frac12", r"\frac{1}{2}", 1),
            ("Answer: 34 cm", "34", 1),
            (r"Answer: 34\text{s}^2", "34", -1),
            (r"Answer: 34\text{m}^2", "34", 1),
            (r"so it is \boxed{34}", "34", -1),
            (r"Answer: 33 as in \boxed{34}", "34", -1),
            ("Answer: 34.", "34", -1),
            ("Answer:", "34", -1),
            ("34", "34", -1),
            ("", "34", -1),
            ("Answer: \N{FULLWIDTH DIGIT THREE}\N{FULLWIDTH DIGIT FOUR}", "34", -1),
            ("Answer: 34" + " " * 290, "34", 1),
            ("Answer: 34" + " " * 291, "34", -1),
            (LONG + "Answer: 34", "34", 1),
        ],
    ),
    "mathematically": (
        ["numina_olympiads"],
        [
            (r"\boxed{2/4}", r"\frac{1}{2}", 1),
            (r"\boxed{x+1}", r"$1+x$", 1),
            (r"\boxed{7}", "8", 0),
            ("", "8", 0),
            (LONG, "8", 0),
        ],
    ),
    "a tenth for the format": (
        ["hiyouga/geometry3k"],
        [
            (r"<think>2 * 3</think> \boxed{6}", "6", 1.0),
            (r"\boxed{6}", "6", 0.9),
            (r"\boxed{12/2}", "6", 0.9),
            (r"<think>2 * 3</think> \boxed{5}", "6", 0.1),
            (r"<think>\boxed{6}</think>", "6", 0.9),
            (r"first <think>2 * 3</think> \boxed{5}", "6", 0.0),
            ("6", "6", 0.0),
            ("", "6", 0.0),
            ("<think>" * 15_000, "6", 0.0),
        ],
    ),
    "the last tagged answer exactly": (
        [f"searchR1_{name}" for name in SETS],
        [
            ("<answer>Paris</answer>", "Paris", 1),
            ("<answer> the PARIS! </answer>", '{"target": ["Rome", "Paris"]}', 1),
            ("<answer>Rome</answer> <answer>Paris</answer>", '["Paris"]', 1),
            ("<answer>Paris</answer> <answer>Rome</answer>", '{"target": "Paris"}', 0),
            ("<answer>1999</answer>", "1999", 1),
            ("<answer>Paris</answer>" * 10, "Paris", 1),
            ("<answer>Paris</answer>" * 11, "Paris", 0.25),
            ("<answer>" * 11 + "Paris</answer>", "Paris", 0),
            ("<answer>Paris is it</answer>", "Paris", 0),
            ("Paris", "Paris", 0),
            ("<answer>Paris", "Paris", 0),
            ("", "Paris", 0),
            ("<answer>" * 12_500, "Paris", 0),
        ],
    ),
}
"""Completion, reference and reward, by what counts."""


@pytest.mark.parametrize(
    ("source", "completion", "reference", "expected"),
    [
        pytest.param(source, *row, id=f"{what}-{source}-{number}")
        for what, (sources, rows) in GOLDEN.items()
        for source in sources
        for number, row in enumerate(rows)
    ],
)
def test_each_source_rewards_what_counts_there(source: str, completion: str, reference: str, expected: float) -> None:
    assert score(source, completion, reference) == pytest.approx(expected)


@pytest.mark.parametrize("reference", ['{"targets": ["Paris"]}', "[]", "[1999]", '{"target": null}'])
def test_reference_answers_of_another_shape_leave_the_row_unscored(reference: str) -> None:
    with pytest.raises(RewardError, match="neither a text nor a list of texts"):
        score("searchR1_nq", "<answer>Paris</answer>", reference)


@pytest.mark.parametrize("name", ["", "gsm8k", "searchR1_other", "openai/gsm8k ", "os.system", "x" * 100_000])
def test_an_unknown_source_is_named_with_those_that_are_known(name: str) -> None:
    with pytest.raises(RewardError, match=r"has no reward; those that have one: openai/gsm8k, .*, taco, ifeval, "):
        source_of(name)


def test_a_row_without_a_source_or_reference_answer_is_unscored() -> None:
    with pytest.raises(RewardError, match="no metadata 'data_source'"):
        score_by_source(an_answer("#### 72", "72"))
    for source in ("openai/gsm8k", "lighteval/MATH", "math_dapo", "searchR1_nq", "multiple_choice"):
        with pytest.raises(RewardError, match="no reference answer"):
            score_by_source(an_answer("#### 72", None, data_source=source))


@pytest.mark.parametrize("name", ["codecontests", "apps", "codeforces", "taco"])
def test_a_program_is_refused_where_there_is_no_sandbox(name: str) -> None:
    tests = json.dumps({"inputs": ["1"], "outputs": ["1"]})
    with pytest.raises(RewardError, match=r"must run in a sandbox, never here: set `sandbox_url`"):
        score(name, "```python\nprint(input())\n```", tests)


def test_each_source_has_a_range_and_passes_at_the_reward_of_a_right_answer() -> None:
    table = {source.name: (*source.range, source.pass_threshold) for source in SOURCES}
    assert len(table) == len(SOURCES) == 24
    assert {name for name, row in table.items() if row == (-1, 1, 1)} == {
        "math_dapo",
        "math",
        "math_dapo_reasoning",
        "aime*",
    }
    assert table["hiyouga/geometry3k"] == (0, 1, 0.9)
    assert set(table.values()) == {(0, 1, 1), (-1, 1, 1), (0, 1, 0.9)}
    assert source_of("hiyouga/geometry3k").passed(score("hiyouga/geometry3k", r"\boxed{6}", "6"))
    assert not source_of("hiyouga/geometry3k").passed(score("hiyouga/geometry3k", r"<think></think>\boxed{5}", "6"))
    assert not source_of("math_dapo").passed(score("math_dapo", "33", "34"))
    assert not source_of("searchR1_nq").passed(0.25)


def test_the_scripts_function_takes_the_documents_keyword_and_verls() -> None:
    assert default_compute_score(data_source="openai/gsm8k", solution="#### 72", ground_truth="72")["score"] == 1.0
    assert default_compute_score("math_dapo", "Answer: 33", "34") == {"score": -1.0, "acc": 0.0}
    assert default_compute_score("openai/gsm8k", "#### 72", 72)["score"] == 1.0
    assert default_compute_score("openai/gsm8k", "#### 72", np.int64(72))["score"] == 1.0


def test_the_scripts_function_takes_nested_values_as_pandas_gives_them() -> None:
    truth = {"target": np.array(["Paris", "Lutetia"], dtype=object)}
    assert default_compute_score("searchR1_nq", "<answer>Lutetia</answer>", truth)["score"] == 1.0
    extra = {
        "instruction_id_list": np.array(["punctuation:no_comma"], dtype=object),
        "kwargs": np.array([{"num_words": None}], dtype=object),
        "index": 3,
    }
    assert default_compute_score("ifeval", "no comma", extra_info=extra)["score"] == 1.0
    assert default_compute_score("ifeval", "a, comma", extra_info=extra)["score"] == 0.0


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan")])
def test_the_scripts_function_takes_no_missing_value_for_a_text(missing: object) -> None:
    for values, why in (
        (("openai/gsm8k", "#### nan", missing), "no reference answer"),
        ((missing, "#### 72", "72"), "no metadata 'data_source'"),
        (("openai/gsm8k", missing, "72"), "without a response"),
    ):
        with pytest.raises(RewardError, match=why):
            default_compute_score(*values)  # type: ignore[arg-type]


"""What people type after its import."""


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{(B)}", "B"),
        (r"\boxed{\text{B}}", "B"),
        (r"Answer: A, so \boxed{B}", "B"),
        (r"\boxed{A} no \boxed{B}", "B"),
        (r"\boxed{A, B}", None),
        (r"\boxed{7}", None),
        ("<answer>B</answer>", "B"),
        ("<answer>(B) Paris</answer>", "B"),
        ("<answer>B or C</answer>", None),
        ("The answer is (B).", "B"),
        ("the answer is B", "B"),
        ("Answer: B", "B"),
        ("**Answer:** B", "B"),
        ("answer: **B**", "B"),
        ("Answer:\n(B)", "B"),
        ("The correct option is B because A is wrong", "B"),
        ("Option B is correct", "B"),
        ("The answer is A. No, the answer is B.", "B"),
        ("The answer is B, and A is wrong", "B"),
        ("The answer is A or B.", None),
        ("Answer: A and B", None),
        ("Answer: A/B", None),
        ("The answer is a dog", None),
        ("The answer is I'm not sure", None),
        ("B", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("**B**", "B"),
        ("A is wrong, so\nB) Paris", "B"),
        ("B\nor something else", None),
        ("(A) or (B)", None),
        ("A cat sat", None),
        ("I think", None),
        ("b", None),
        ("", None),
        ("\N{GREEK CAPITAL LETTER BETA}", None),
        ("Answer: " * 12_500, None),
        ("word " * 20_000 + "Answer: B", "B"),
    ],
)
def test_a_completion_names_one_letter_or_none(completion: str, letter: str | None) -> None:
    assert chosen_letter(completion) == letter


def test_only_the_letters_of_the_choices_count() -> None:
    rubric = load_environment("multiple_choice").rubric
    choices = ["red", "green", "blue"]
    assert rubric.score(an_answer("Answer: C", "C", choices=choices)) == (1.0, {"correct": 1.0, "answered": 1.0})
    assert rubric.score(an_answer("Answer: D", "C", choices=choices)) == (0.0, {"correct": 0.0, "answered": 0.0})
    assert rubric.score(an_answer("Answer: D", "(C)"))[1] == {"correct": 0.0, "answered": 1.0}


@pytest.mark.parametrize(
    ("reference", "choices"), [("D", ["red", "green", "blue"]), ("green", ["red", "green"]), ("A", ["red"]), ("A", 3)]
)
def test_a_row_whose_right_letter_is_no_choice_is_unscored(reference: str, choices: object) -> None:
    with pytest.raises(RewardError, match=r"no letter of|must be a JSON list"):
        load_environment("multiple_choice").rubric.score(an_answer("Answer: A", reference, choices=choices))


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def scored(completion: str, schema: Any = SCHEMA) -> tuple[float, dict[str, float]]:
    rubric = load_environment("structured_output").rubric
    return rubric.score(an_answer(completion, json_schema=schema))


@pytest.mark.parametrize(
    ("completion", "fits", "is_json"),
    [
        ('{"name": "Ada", "age": 36}', 1, 1),
        ('  {"name": "Ada", "age": 36}\n', 1, 1),
        ('Here it is:\n```json\n{"name": "Ada", "age": 36}\n```\n', 1, 1),
        ('```\n{"name": "Ada", "age": 36}\n```', 1, 1),
        ('```json\n{"name": "A", "age": 1}\n```\n```json\n{"name": "B", "age": 2}\n```', 0, 0),
        ('{"name": "Ada", "age": 36.5}', 0, 1),
        ('{"name": "Ada", "age": -1}', 0, 1),
        ('{"name": "Ada"}', 0, 1),
        ('{"name": "Ada", "age": 36, "sex": "f"}', 0, 1),
        ('{"name": "Ada", "age": 36', 0, 0),
        ("{'name': 'Ada', 'age': 36}", 0, 0),
        ('{"name": "Ada", "age": NaN}', 0, 0),
        ('{"name": "Ada", "age": ' + "9" * 5000 + "}", 0, 0),
        ("[" * 100_000, 0, 0),
        ("", 0, 0),
        ("word " * 20_000, 0, 0),
    ],
)
def test_a_completion_is_json_that_fits_or_it_is_not(completion: str, fits: float, is_json: float) -> None:
    assert scored(completion) == (fits, {"fits_schema": fits, "is_json": is_json})


@pytest.mark.parametrize("schema", ["", "{", "[]", "7", {"type": "no such type"}, {"pattern": "("}])
def test_a_row_without_a_usable_schema_is_unscored(schema: Any) -> None:
    with pytest.raises(RewardError, match="json_schema"):
        scored("{}", schema)


def test_a_schema_that_refers_elsewhere_is_an_error_and_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        port = listening.getsockname()[1]
        with pytest.raises(RewardError, match="Unresolvable"):
            scored("{}", {"$ref": f"http://127.0.0.1:{port}/schema.json"})
        with pytest.raises(TimeoutError):
            listening.accept()


def test_a_schema_may_refer_to_its_own_parts() -> None:
    tree = {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"}
    assert scored("[[], [[]]]", json.dumps(tree))[0] == 1.0
    assert scored("[[], [7]]", json.dumps(tree))[0] == 0.0
