"""Ctrl-C while libraries are imported ends a command without a traceback; `-v` shows tracebacks of errors."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ENTRY = "from rollstream.cli.entry import main; main()"
SLOW = "import time; print('importing', flush=True); time.sleep(60)"


@contextmanager
def importing(module: str, tmp_path: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """`rollstream WORDS`, once it hangs in the import of `module`."""
    (tmp_path / f"{module}.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "ROLLSTREAM_RUN": "demo"}
    command = [sys.executable, "-c", ENTRY, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            yield process
        finally:
            process.kill()


def test_ctrl_c_while_a_command_is_imported_ends_it_in_silence(tmp_path: Path) -> None:
    with importing("rich", tmp_path, "status") as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (-signal.SIGINT, "")


def test_ctrl_c_while_a_stage_is_imported_ends_it_without_a_traceback(tmp_path: Path) -> None:
    with importing("confluent_kafka", tmp_path, "producer") as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "SIGINT: ending; once more to end at once" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in said


def test_ctrl_c_while_a_command_imports_what_it_needs_ends_it_as_shells_report_it(tmp_path: Path) -> None:
    words = ["generate-rollouts", "--model_path", "m", "--data_path", str(tmp_path / "prompts.jsonl"), "--use_vllm"]
    with importing("numpy", tmp_path, *words) as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in said


@pytest.mark.parametrize(("verbose", "has_traceback"), [([], False), (["-v"], True)])
def test_an_error_is_one_line_and_with_v_its_traceback_too(verbose: list[str], has_traceback: bool) -> None:
    command = [sys.executable, "-c", ENTRY, "config", "--table", "nope\x1b", *verbose]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 78
    assert r"error: no table nope\x1b; there are shared, kafka" in done.stderr
    assert ("Traceback" in done.stderr) == has_traceback
