"""`python -m tests.soak` as people run it: it is ended with Ctrl-C, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.harness.processes import ROOT
from tests.harness.waits import wait_until


def processes_of(directory: Path) -> list[str]:
    """Command lines that name the directory: brokers, Redis and stages of a run there."""
    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:  # it has ended meanwhile
            continue
    return [command for command in found if str(directory) in command]


def test_ctrl_c_ends_a_soak_with_every_process_and_with_its_report(tmp_path: Path) -> None:
    directory, said = tmp_path / "soak", tmp_path / "said"
    command = [sys.executable, "-m", "tests.soak", "--run-dir", str(directory)]
    with (
        said.open("w") as stderr,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True) as soak,
    ):
        try:
            wait_until(lambda: [*directory.glob("weights/3-*")], "the third step", 240.0)
            stages = [command for command in processes_of(directory) if "--config" in command]
            assert len(stages) >= 7
            os.kill(soak.pid, signal.SIGINT)
            report = json.loads(soak.communicate(timeout=120)[0])
        finally:
            soak.kill()
    assert soak.returncode == 1
    assert [problem.partition(",")[0] for problem in report["problems"]] == ["it was told to end"]
    assert report["leftovers"].items() >= {"processes": 0, "temporary_files": 0}.items()
    assert report["surviving_steps"] >= 3
    assert said.read_text().splitlines()[-1] == "every process has ended"
    assert processes_of(directory) == []
