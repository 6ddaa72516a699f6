"""What a campaign leaves behind when every stage has ended: processes, temporary files, directories of versions."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from rollstream.engines.vllm.temporary import COMPILED, delete_left

_MARK: Final = "TMPDIR"
"""Each campaign has a directory of its own, and scoring processes inherit hardly any other variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How many there are of each, and which of them must not be there."""

    counts: Mapping[str, int]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Where to look. `most_directories`: as many versions and checkpoints together may stay."""

    temporary: Path
    weights: Path
    checkpoints: Path
    most_directories: int

    @property
    def environment(self) -> dict[str, str]:
        """What the stages must be started with. Their children inherit it, and so are found whoever their parent is."""
        return {_MARK: str(self.temporary)}

    def found(self) -> Found:
        """Look now. What the next generator would delete at its start is none."""
        delete_left(self.temporary)
        processes = [process for process in psutil.process_iter() if self._is_ours(process)]
        made = [path for path in self.temporary.iterdir() if not path.name.startswith(COMPILED)]
        temporary = [*made, *self.weights.glob(".*"), *self.checkpoints.glob(".*")]
        directories = [*self.weights.glob("[0-9]*"), *self.checkpoints.glob("[0-9]*")]
        problems = [f"process {process.pid} is left: {_command(process)}" for process in processes]
        problems += [f"{path} is left" for path in temporary]
        if len(directories) > self.most_directories:
            problems.append(f"{len(directories)} weight versions and checkpoints are left, of {self.most_directories}")
        return Found(
            counts={"processes": len(processes), "temporary_files": len(temporary), "directories": len(directories)},
            problems=tuple(problems),
        )

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return bool(process.pid != os.getpid() and process.environ().get(_MARK) == str(self.temporary))
        except (psutil.Error, OSError):
            return False  # it has ended meanwhile, or belongs to another user


@contextmanager
def leftovers_of(run_dir: Path, most_directories: int) -> Iterator[Leftovers]:
    """What a run in `run_dir` leaves, with a directory for its temporary files while the block runs."""
    # In /tmp and with a short name: sockets of child processes are made in it, whose paths are bounded.
    temporary = Path(tempfile.mkdtemp(prefix="stages-"))
    try:
        yield Leftovers(temporary, run_dir / "weights", run_dir / "checkpoints", most_directories)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "ended meanwhile"
