"""One process, or several that torchrun started, each with a part of every batch of SFT."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rollstream.schemas.errors import ConfigurationError
from rollstream.training.pipeline.settings import SftTable, TrainSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Processes:
    """Which one this is, and how many there are."""

    rank: int = 0
    number: int = 1

    def part(self, samples: Sequence[T]) -> list[T]:
        """As many samples for this process as for each of the others, and none of theirs."""
        return list(samples[: len(samples) // self.number * self.number][self.rank :: self.number])

    def batch_size(self, table: SftTable) -> int:
        """Samples of a step for this process; raises `ConfigurationError` unless each gets equally many."""
        if table.batch_size % self.number:
            raise ConfigurationError(
                f"sft.batch_size {table.batch_size} is not divided by {self.number} processes: choose a multiple"
            )
        return table.batch_size // self.number

    def refuse_others(self, checkpoint: Path) -> None:
        """Raise `ConfigurationError` for a checkpoint of SFT by more or fewer processes: each saw a part of its own."""
        from rollstream.training.backends.checkpoints import read_metadata

        others = len(read_metadata(checkpoint).get("metrics_of_processes", [None]))
        if others != self.number:
            raise ConfigurationError(
                f"{checkpoint} was written by {others} processes, there are {self.number}: start as many, or name it "
                "as the model, and another output"
            )


ALONE: Final = Processes()


@contextmanager
def joined(settings: TrainSettings) -> Iterator[Processes]:
    """Join torchrun's other processes, if there are any; the GPUs of `gpu_ranks` are the only ones that are seen.

    Raises `ConfigurationError` if a GPU is hidden or absent, or if there is not one for each process.
    """
    number, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    ranks = list(settings.gpu_ranks)
    if ranks:
        choose_gpus(ranks)
    if ranks and len(ranks) != here:
        raise ConfigurationError(
            f"gpu_ranks {ranks} needs {len(ranks)} processes on this machine, there are {here}: start them by "
            f"`torchrun --nproc_per_node={len(ranks)} --no-python rollstream train CONFIG`, or name one GPU"
        )
    if number == 1:
        yield ALONE
        return
    if settings.sft is None or settings.mode != "sft":
        raise ConfigurationError(f"mode {settings.mode!r} trains in one process, there are {number}: take mode 'sft'")
    import torch
    import torch.distributed as dist

    on_gpu = settings.sft.learning.device != "cpu" and torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Processes(dist.get_rank(), number)
    finally:
        dist.destroy_process_group()


def choose_gpus(ranks: Sequence[int]) -> None:
    """Let this process see these GPUs alone; raises `ConfigurationError` if one is hidden, or is not there."""
    import torch

    from rollstream.training.backends.fsdp import place_among_visible

    for gpu in ranks:
        place_among_visible(gpu)
    # Torch looks when it is first asked for a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, ranks))
    if not torch.cuda.is_available():
        raise ConfigurationError(f"gpu_ranks {list(ranks)}: torch sees no such GPU: leave gpu_ranks out")
