"""What docstrings show is true: every record's example makes such a record, the life of a group names every reason."""

import ast
import inspect
import textwrap
from typing import Any

from rollstream.schemas import failure, feedback, ids, ledger, producer, progress, prompt, rollout, scored, weights
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.record import Record, utc_now
from rollstream.schemas.topics import TOPICS
from rollstream.trainer.intake import groups

MODULES = (prompt, producer, failure, rollout, progress, scored, weights, ledger, feedback)


def test_every_record_has_an_example_that_makes_it_and_can_be_written() -> None:
    """Examples share their names, in the order of the modules: a rollout's example is of the prompt's example."""
    names: dict[str, Any] = {"utc_now": utc_now}
    for module in (ids, *MODULES):
        names |= vars(module)
    for kind in _records():
        made = _made(kind, names)
        assert made, f"{kind.__name__} shows no example of itself"
        for topic in TOPICS:
            if topic.record is kind:
                assert [AvroCodec(topic).decode(AvroCodec(topic).encode(record)) for record in made] == made


def test_the_life_of_a_group_has_every_reason_to_drop_it() -> None:
    picture = groups.__doc__ or ""
    assert [reason.value for reason in groups.DropReason if reason.value not in picture] == []


def _records() -> list[type[Record]]:
    found = [kind for module in MODULES for kind in vars(module).values() if _is_record_of(kind, module.__name__)]
    assert {kind.__name__ for kind in Record.__subclasses__() if kind.__module__.startswith("rollstream.schemas.")} == {
        kind.__name__ for kind in found
    }
    return found


def _is_record_of(kind: Any, module: str) -> bool:
    return inspect.isclass(kind) and issubclass(kind, Record) and kind.__module__ == module


def _made(kind: type[Record], names: dict[str, Any]) -> list[Record]:
    """What the statements of the class's example make, of this class; their names are added to `names`."""
    _, _, example = (inspect.getdoc(kind) or "").partition("Example")
    code = textwrap.dedent(example.partition(":\n")[2])
    made = []
    for statement in ast.parse(code).body:
        expression = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
        assert expression is not None, f"{kind.__name__}: an example is made of records, got {ast.unparse(statement)}"
        value = eval(ast.unparse(expression), names)
        if isinstance(statement, ast.Assign):
            names[ast.unparse(statement.targets[0])] = value
        made += [value] if isinstance(value, kind) else []
    return made
