"""Which prompts in a producer's name are its own: those that its source gives."""

from rollstream.producers.foreign import FoundPrompts
from tests.harness.builders import a_prompt


def found(*numbered: tuple[int, str], next_sequence: int = 10) -> FoundPrompts:
    made = FoundPrompts("one", next_sequence)
    for sequence, group_id in numbered:
        made.note(a_prompt(producer="one", sequence=sequence, group_id=group_id))
    return made


def rows(first: int = 10, count: int = 100) -> list[tuple[int, str]]:
    return [(sequence, f"group-{sequence}") for sequence in range(first, first + count)]


def test_a_producers_own_prompts_are_found_in_spite_of_gaps_and_repetitions() -> None:
    made = found((10, "group-10"), (13, "group-13"), (13, "group-13"), (11, "group-11"))
    assert made.take_own(rows(), longest_gap=3) == ["group-10", "group-11", "group-13"]
    assert not made.foreign


def test_a_strangers_number_or_group_moves_nothing_on() -> None:
    made = found((10, "group-10"), (10, "a stranger's"), (2**50, "a stranger's"), (90, "group-90"))
    assert made.take_own(rows(), longest_gap=5) == ["group-10"]
    assert made.foreign == {(10, "a stranger's"), (2**50, "a stranger's"), (90, "group-90")}


def test_a_strangers_huge_number_costs_no_walk_through_the_source() -> None:
    source = iter(rows(count=10_000))
    assert found((2**50, "a stranger's")).take_own(source, longest_gap=5) == []
    assert next(source) == (15, "group-15")


def test_what_comes_before_the_next_number_and_prompts_of_others_are_set_apart() -> None:
    made = found((9, "group-9"), (10, "group-10"))
    made.note(a_prompt(producer="two", sequence=11, group_id="group-11"))
    assert made.take_own(rows(), longest_gap=5) == ["group-10"]
    assert (made.earlier, made.foreign) == ({"group-9"}, frozenset())
