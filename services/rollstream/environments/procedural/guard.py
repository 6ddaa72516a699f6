"""Keeps reasoning-gym's scorers from running code that a model or a record wrote.

Some scorers read an answer with Python's `eval`, or with sympy's `parse_expr`, which is built on it. So an answer like
`__import__("os").system(...)` would run in the scoring process. What reaches them is checked first: only numbers,
texts, lists, arithmetic, the functions below and variables of one letter. What is more than that is no answer that they
could score anyway.
"""

import ast
from collections.abc import Mapping
from typing import Any, Final

from rollstream.schemas.errors import RewardError

MAX_CHARACTERS: Final = 2000
"""Of an answer that is evaluated; the longest right ones, boards and polynomials, have some hundred."""
_FARTHEST_SHIFT: Final = 1024
_FUNCTIONS: Final = frozenset(
    {"sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
    | {"exp", "log", "ln", "sqrt", "Abs", "Rational", "Integer", "Float"}
)
_CONSTANTS: Final = frozenset({"pi", "E"})
_NODES: Final = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.UnaryOp, ast.operator, ast.unaryop,
    ast.Name, ast.Call,
)  # fmt: skip

EVALUATED: Final[Mapping[str, tuple[str, ...]]] = {
    "binary_matrix": (),
    "bitwise_arithmetic": ("problem",),
    "countdown": (),
    "intermediate_integration": ("integrand",),
    "n_queens": (),
    "number_sorting": ("answer",),
    "polynomial_multiplication": ("answer",),
    "puzzle24": (),
    "simple_integration": ("integrand",),
    "spiral_matrix": (),
    "string_insertion": (),
}
"""The data sets of version 0.1.25 whose scorers evaluate the answer, and what else of the row they evaluate."""
_COMPARED_FIRST: Final = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Those that compare the answer with the right ones before they evaluate it."""


def guarded(dataset: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The answer, or an empty one in its place, which is scored as one that can't be read.

    Raises `RewardError` if what the row itself gives to evaluate is more than an expression.
    """
    if dataset not in EVALUATED:
        return answer
    for name in EVALUATED[dataset]:
        text = entry["answer"] if name == "answer" else entry["metadata"].get(name)
        if not isinstance(text, str) or not is_harmless(text):
            raise RewardError(f"the row's {name!r} would be evaluated and is no plain expression: {str(text)[:100]!r}")
    is_right = dataset in _COMPARED_FIRST and answer in _right_answers(entry)
    return answer if is_right or is_harmless(answer) else ""


def is_harmless(text: str) -> bool:
    """Whether a text is an expression of numbers, texts, lists, arithmetic and known functions, and not too long."""
    if len(text) > MAX_CHARACTERS:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_allowed(node) for node in ast.walk(tree))


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if isinstance(node, ast.BinOp):
        return _is_bounded(node)
    if isinstance(node, ast.Name):
        return len(node.id) == 1 or node.id in _FUNCTIONS or node.id in _CONSTANTS
    return isinstance(node, _NODES)


def _is_bounded(operation: ast.BinOp) -> bool:
    """Neither a text or list that is multiplied nor a far shift, which could take all memory at once."""
    sides = (operation.left, operation.right)
    if any(isinstance(side, ast.List | ast.Tuple) or _is_text(side) for side in sides):
        return False
    if not isinstance(operation.op, ast.LShift):
        return True
    distance = operation.right.value if isinstance(operation.right, ast.Constant) else None
    return isinstance(distance, int) and distance <= _FARTHEST_SHIFT


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _right_answers(entry: Mapping[str, Any]) -> list[Any]:
    valid = entry["metadata"].get("valid_answers")
    return [entry["answer"], *(valid if isinstance(valid, list) else [])]
