"""The order of prompts, where a producer goes on, the prompt of a row, and which prompts are its own."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

import pytest

from rollstream.producers.foreign import FoundPrompts
from rollstream.producers.numbering import (
    NumberedRow,
    RowPlace,
    last_position,
    numbered_rows,
    place_after,
    prompt_of_row,
)
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.protocol import PromptRow
from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from tests.harness.builders import a_progress, a_prompt

SIZES = (7, 1, 12)


@dataclass(frozen=True)
class Numbers:
    """A source of numbers; `num_rows` None is endless."""

    num_rows: int | None = 20
    dataset: str = "numbers"

    def rows(self, epoch: int, start: int) -> Iterator[PromptRow]:
        if self.num_rows is None:
            order: Iterator[int] = iter(range(10**9))
        else:
            [(_, shuffled)] = epoch_order([self.num_rows], seed=5, epoch=epoch)
            order = iter(shuffled)
        for row in islice(order, start, None):
            yield PromptRow(prompt_id=f"numbers/{row}", row=row, messages=())


def order_of(source: Numbers, first: int, count: int) -> list[tuple[int, int, int]]:
    numbered = islice(numbered_rows(source, RowPlace(position=first), stop_before=None), count)
    return [(each.place.position, each.epoch, each.row.row) for each in numbered]


def test_each_epoch_has_every_row_once_in_blocks_and_in_an_order_of_its_own() -> None:
    for epoch in range(3):
        order = epoch_order(SIZES, seed=1, epoch=epoch)
        assert sorted(block for block, _ in order) == [0, 1, 2]
        assert all(sorted(rows) == list(range(SIZES[block])) for block, rows in order)
    orders = [epoch_order([50], seed=seed, epoch=epoch) for seed, epoch in product(range(3), range(3))]
    assert len({str(order) for order in orders}) == 9


@pytest.mark.parametrize("seed_of_hashes", ["1", "2"])
def test_the_order_is_the_same_in_every_process_and_version(seed_of_hashes: str) -> None:
    # Another order would make a restarted producer submit some rows twice and others never.
    script = "from rollstream.rows.order import epoch_order; print(epoch_order([3, 5], seed=0, epoch=1))"
    environment = {"PYTHONHASHSEED": seed_of_hashes}
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
    assert found.stdout == "[(1, [3, 1, 0, 2, 4]), (0, [0, 1, 2])]\n"


@pytest.mark.parametrize("first", [0, 1, 19, 20, 33, 60])
def test_resuming_in_mid_epoch_gives_what_would_have_come(first: int) -> None:
    whole = order_of(Numbers(), 0, 80)
    assert order_of(Numbers(), first, 80 - first) == whole[first:]
    assert {epoch for _, epoch, _ in whole} == {0, 1, 2, 3}


def test_an_endless_source_is_one_epoch_and_has_no_more() -> None:
    assert order_of(Numbers(num_rows=None), 1000, 2) == [(1000, 0, 1000), (1001, 0, 1001)]
    with pytest.raises(ConfigurationError, match="numbers is endless, so epochs=2 has no end"):
        last_position(Numbers(num_rows=None), epochs=2, num_prompts=None)


def test_a_finite_producer_stops_where_it_is_told() -> None:
    stop_before = last_position(Numbers(), epochs=2, num_prompts=None)
    assert len(list(numbered_rows(Numbers(), RowPlace(position=15), stop_before=stop_before))) == 25
    assert last_position(Numbers(), epochs=2, num_prompts=30) == 30
    assert last_position(Numbers(), epochs=None, num_prompts=None) is None


def prompt_of(
    row: int,
    *,
    epoch: int = 0,
    name: str = "one",
    seed: int | None = 7,
    group_size: int = 4,
    max_tokens: int = 12,
    text: str = "",
) -> PromptSubmitted:
    settings = ProducerSettings(run="demo", name=name, environment="sort_digits", group_size=group_size)
    messages = (Message(role="user", content=f"{row}={text}"),)
    numbered = NumberedRow(
        place=RowPlace(position=row, sequence=row),
        epoch=epoch,
        row=PromptRow(prompt_id=f"digits/{row}", row=row, messages=messages),
    )
    return prompt_of_row(
        numbered, settings=settings, dataset="digits", sampling=Sampling(max_tokens=max_tokens, seed=seed)
    )


def test_a_prompt_submitted_again_asks_the_same_and_in_another_epoch_it_is_another_group() -> None:
    assert prompt_of(3).content_hash() == prompt_of(3, name="two").content_hash()
    assert prompt_of(3).group_id == group_id("demo", "digits/3", 0)
    assert prompt_of(3).group_id != prompt_of(3, epoch=1).group_id


def test_each_prompt_draws_noise_of_its_own() -> None:
    seeds = [prompt_of(row).sampling.seed for row in range(20)] + [prompt_of(3, epoch=1).sampling.seed]
    assert len(set(seeds)) == 21
    assert prompt_of(3, seed=None).sampling.seed is None


def test_a_row_whose_samples_would_all_fail_is_refused_with_its_bound() -> None:
    with pytest.raises(ConfigurationError, match=r"digits/3 can't be submitted: max_tokens .* is above 1048576"):
        prompt_of(3, max_tokens=2**40)
    with pytest.raises(
        ConfigurationError, match=r"group_size 1024 x 59\d+ bytes .* lower group_size to 45, or shorten"
    ):
        prompt_of(3, group_size=1024, text="x" * 5_900_000)


def test_a_producer_goes_on_where_its_record_says() -> None:
    assert place_after(None, "digits", 7) == RowPlace(position=0, sequence=0)
    left = a_progress(source="digits", mark=RowPlace(position=4).mark(7), next_sequence=9)
    assert place_after(left, "digits", 7) == RowPlace(position=4, sequence=9)
    assert place_after(left, "letters", 7) == RowPlace(sequence=9), "another data set starts at its first row"
    elsewhere = left.model_copy(update={"source": "letters", "mark": "0/7"})
    earlier = left.model_copy(update={"next_sequence": 5})
    assert place_after(elsewhere, "digits", 7, earlier=earlier) == RowPlace(position=4, sequence=9), "it came back"
    assert place_after(left.model_copy(update={"mark": "-1"}), "digits", 7) == RowPlace(sequence=9), "no position"


def test_another_seed_of_the_same_source_is_refused_since_its_rows_come_in_another_order() -> None:
    left = a_progress(source="digits", mark=RowPlace(position=4).mark(7), next_sequence=9)
    with pytest.raises(ConfigurationError, match=r"at row 4 of digits in the order of seed 7: .* set seed = 7"):
        place_after(left, "digits", 8)


def found(*numbered: tuple[int, str], next_sequence: int = 10) -> FoundPrompts:
    made = FoundPrompts("one", next_sequence)
    for sequence, group in numbered:
        made.note(a_prompt(producer="one", sequence=sequence, group_id=group))
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
