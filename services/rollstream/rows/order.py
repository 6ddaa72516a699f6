"""The order of an epoch's rows: from a seed, the same in every process, so that a restart goes on in it. Pure."""

import random
from collections.abc import Sequence


def epoch_order(block_sizes: Sequence[int], *, seed: int, epoch: int) -> list[tuple[int, list[int]]]:
    """Blocks in a shuffled order, each with its rows shuffled: [(block, [row in block, ...]), ...].

    A block is what a source reads at once (a parquet row group, a whole file). Only `random()` and string seeds are
    used, which Python promises to keep the same across versions; `shuffle` is not promised.
    """
    blocks = _shuffled(len(block_sizes), f"{seed}/{epoch}")
    return [(block, _shuffled(block_sizes[block], f"{seed}/{epoch}/{block}")) for block in blocks]


def _shuffled(count: int, seed: str) -> list[int]:
    generator = random.Random(seed)
    return sorted(range(count), key=lambda _: generator.random())
