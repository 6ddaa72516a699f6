"""torchrun, forked from a process that has imported torch already, as it takes seconds."""

import os
from pathlib import Path


def two_processes(directory: Path, *words: str) -> None:
    """Be `torchrun --standalone --nproc_per_node=2 -m rollstream.cli.main WORDS` in `directory`."""
    from torch.distributed.run import main

    os.chdir(directory)
    main(["--standalone", "--nproc_per_node=2", "-m", "rollstream.cli.main", *words])
