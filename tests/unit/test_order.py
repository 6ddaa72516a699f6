"""The order of prompts: a permutation in every epoch, the same in every process, to be resumed at any position."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

import pytest

from rollstream.producers.numbering import RowPlace, last_position, numbered_rows
from rollstream.producers.order import epoch_order
from rollstream.producers.sources.protocol import PromptRow
from rollstream.schemas.errors import ConfigurationError

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
    script = "from rollstream.producers.order import epoch_order; print(epoch_order([3, 5], seed=0, epoch=1))"
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
