"""How large each part may become, and that no name of a class stands twice: so that growth is meant, and said."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.harness.syntax import ROOT, modules, parsed

SERVICES: Final = "services/rollstream"
INSTRUMENTS: Final = ("tests/bench", "tests/chaos", "tests/soak")

ROOMS: Final = {
    "services/rollstream/agents": 1_670,  # a session: turns, tools, what a kill leaves; cycles, 400 of them
    "services/rollstream/archive": 1_700,  # the options of its two commands too, which were in cli; whole records
    "services/rollstream/bus": 3_100,  # notes of commits that others wrote; what follows a commit
    "services/rollstream/cli": 2_750,  # `train`, `evaluate` that follows, NeMo Gym's and the Reasoning Cache's commands
    "services/rollstream/client": 800,  # evaluation of versions as they come, with pass@k
    "services/rollstream/engines": 4_750,  # lent places; conversations that go on from sampled tokens, by families
    "services/rollstream/environments": 3_650,  # the verdict of a session, scores of turns, sums in cycles, a table
    "services/rollstream/generator": 3_700,  # the HTTP endpoint, its records and their spool; progress and its end
    "services/rollstream/gym": 4_000,  # rows, output and metrics of NeMo Gym; its servers, 1,800 of them
    "services/rollstream/history": 2_450,
    "services/rollstream/http": 1_100,  # what strangers reach: guard, keys, server
    "services/rollstream/local": 3_000,
    "services/rollstream/offline": 6_700,
    "services/rollstream/process": 3_650,  # SQLite; tools' settings; YAML, Hydra's words; signals while a client waits
    "services/rollstream/rc_actor": 3_150,  # the Reasoning Cache actor: keys 700, streams 800, the loop 650
    "services/rollstream/rows": 1_700,  # streams of groups too
    "services/rollstream/scorer": 1_050,
    "services/rollstream/stage": 1_100,
    "services/rollstream/tools": 1_500,  # three kinds, processes of a user's own tools, bounds, sessions that are left
    "services/rollstream/views": 1_000,
    "schemas": 2_650,  # feedback, whose answer a rollout is, progress of turns, topics of streams
    "producers": 5_250,  # the curriculum, ingest, feedback that becomes reward, states of cycles
    "trainer": 9_950,  # credit by turns; the training library, 6,400 of them without Kafka
    "tests/bench": 4_600,  # serving, agents, cycles, their actor
    "tests/chaos": 2_450,  # callers and feedback
    "tests/soak": 700,
    "tests": 70_500,  # those of the training library, the gradients of TRL, of what is served, of NeMo Gym
}
"""Lines of Python that each folder may have."""


@pytest.mark.parametrize("room", ROOMS)
def test_no_part_is_larger_than_its_room(room: str) -> None:
    found = lines_of(room)
    assert found <= ROOMS[room], f"{room} has {found} lines: raise its number in ROOMS, with the reason beside it"


def test_every_folder_has_a_room() -> None:
    folders = {f"{SERVICES}/{path.name}" for path in (ROOT / SERVICES).iterdir() if any(path.rglob("*.py"))}
    assert {room for room in ROOMS if room.startswith(SERVICES)} == folders


def test_a_class_name_is_used_once() -> None:
    counts = Counter(node.name for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1] == [], "choose another name"


def test_a_docstring_says_what_something_is_and_not_only_where_to_look() -> None:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [ast.get_docstring(node) or "" for tree in trees() for node in ast.walk(tree) if isinstance(node, kinds)]
    found = [text for text in texts if re.fullmatch(r"See (the )?`?[\w.]+`?\.?", text)]
    assert found == [], "say what it is, or leave the docstring out"


def lines_of(room: str) -> int:
    """Lines of Python in a folder; of `tests` without the instruments, which have rooms of their own."""
    paths = (ROOT / room).rglob("*.py")
    others = INSTRUMENTS if room == "tests" else ()
    return sum(
        path.read_text().count("\n") for path in paths if not str(path.relative_to(ROOT)).startswith(tuple(others))
    )


def trees() -> Iterator[ast.Module]:
    """Every module of the wheel."""
    return map(parsed, modules())
