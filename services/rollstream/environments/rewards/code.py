"""The reward of programming problems (codecontests, apps, codeforces, taco): the share of tests that a program passes.

The program is the model's. It never runs here: without a sandbox service these sources are refused.
"""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from rollstream.environments.rewards.references import nested, reference_of
from rollstream.environments.rewards.sandbox import Ran, Sandbox
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import RewardError

MAX_TESTS: Final = 10
"""Of each problem the first ones, as in verl."""
_AT_ONCE: Final = 5
# `*+` gives nothing back: a long line without an end would take time with the square of its length.
_FENCED: Final = re.compile(r"(?ms)^[ \t]*```(\w*+)[^\n]*+\n(.*?)(?:^[ \t]*```|\Z)")
_CALL: Final = """

import json as _json, sys as _sys
_owner = Solution() if "Solution" in globals() else None
_function = getattr(_owner, {name!r}) if _owner is not None else globals()[{name!r}]
print(_json.dumps(_function(*[_json.loads(_line) for _line in _sys.stdin.read().splitlines() if _line.strip()])))
"""


@dataclass(frozen=True, slots=True)
class _Tests:
    """What a program is given, and what it must print. `function`: it is called, with each line as a JSON argument."""

    inputs: tuple[str, ...]
    outputs: tuple[Any, ...]
    function: str | None = None


def code_reward(sample: RewardInput, sandbox: Sandbox | None) -> float:
    """The share of the first `MAX_TESTS` tests whose output is right. The reference answer holds them as JSON text.

    Tests run side by side, five at a time. After a test that ran too long no further ones are begun: they count as
    failed. Raises `RewardError` if there is no sandbox, if it fails, or if the tests can't be read.
    """
    if sandbox is None:
        raise RewardError(
            "the model's program must run in a sandbox, never here: set `sandbox_url` in [environments.by_source] to a "
            "service with sandbox-fusion's POST /run_code"
        )
    tests = _tests(reference_of(sample))
    program = _program(sample.completion)
    if program is None:
        return 0.0
    if tests.function:
        program += _CALL.format(name=tests.function)
    passed = 0
    for start in range(0, len(tests.inputs), _AT_ONCE):
        ran = _all_ran(sandbox, program, tests.inputs[start : start + _AT_ONCE])
        is_right = _is_value if tests.function else _is_output
        passed += sum(map(is_right, ran, tests.outputs[start : start + _AT_ONCE]))
        if any(one.is_timeout for one in ran):
            break
    return passed / len(tests.inputs)


def _all_ran(sandbox: Sandbox, program: str, inputs: tuple[str, ...]) -> list[Ran]:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(lambda stdin: sandbox.run(program, stdin), inputs))


def _program(completion: str) -> str | None:
    """The last fenced block that is Python or has no language; without any block the whole text; None if empty."""
    blocks = [code for language, code in _FENCED.findall(completion) if language.lower() in {"", "python", "py"}]
    text = blocks[-1] if blocks else completion
    return text if text.strip() else None


def _is_output(ran: Ran, wanted: Any) -> bool:
    """Whether the same lines were printed, but for spaces at their ends."""
    return ran.stdout is not None and _lines(ran.stdout) == _lines(_stdin(wanted))


def _is_value(ran: Ran, wanted: Any) -> bool:
    """Whether the function returned the value. It may be given as JSON text, or as the only entry of a list."""
    try:
        value = json.loads(ran.stdout or "")
    except (ValueError, RecursionError):
        return False
    return wanted in (value, [value]) or (isinstance(wanted, str) and value == _read(wanted))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _tests(reference: str) -> _Tests:
    given = nested(reference)
    match given:
        case {"inputs": list(inputs), "outputs": list(outputs)} if inputs and len(inputs) == len(outputs):
            name = given.get("fn_name")
        case _:
            raise RewardError(
                "the reference answer of a programming problem must be JSON text with as many 'inputs' as 'outputs', "
                f"at least one: {reference[:100]!r}"
            )
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        raise RewardError(f"fn_name {str(name)[:100]!r} is no name of a function")
    pairs = list(zip(inputs, outputs, strict=True))[:MAX_TESTS]
    return _Tests(tuple(_stdin(given) for given, _ in pairs), tuple(wanted for _, wanted in pairs), name)


def _stdin(given: Any) -> str:
    return (
        given if isinstance(given, str) else "\n".join(map(json.dumps, given if isinstance(given, list) else [given]))
    )
