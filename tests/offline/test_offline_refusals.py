"""A full disk, a directory without rights, an output that another process holds: the same end of every command."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollstream.process.files import held
from tests.harness.offline_commands import OfflineCommand, offline_command

NO_SERVER = "http://127.0.0.1:9/v1"
READ_ONLY = Path("/sys")
"""Nobody makes files there, root neither."""
COMMANDS = [
    "collect a file", "collect into parquet", "collect into a directory", "collect an environment", "collect --every",
    "collect --watch", "analyze-rewards", "generate-rollouts", "word-count-rollouts", "filter-difficulty",
]  # fmt: skip
ASKS_NOBODY = [name for name in COMMANDS if name != "generate-rollouts"]


def made(name: str, folder: Path) -> OfflineCommand:
    command = offline_command(name, folder)
    return replace(command, words=(*command.words, NO_SERVER)) if name == "generate-rollouts" else command


def check(command: OfflineCommand, exit_code: int, named: Path, *words: str, num_bytes: int | None = None) -> None:
    """It ends with this code, and in one line that names the file, and what to do."""
    process = command.start(num_bytes=num_bytes)
    assert process.wait(60) == exit_code, process.said()
    said = process.said()
    assert str(named) in said
    assert all(word in said for word in words), said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_the_machines_fault(name: str, tmp_path: Path) -> None:
    command = made(name, tmp_path)
    check(command, 70, command.output, "make room", num_bytes=4096)


@pytest.mark.parametrize("num_bytes", [30_000, 60_000, 90_000])
@pytest.mark.parametrize("name", ASKS_NOBODY[:4])
def test_wherever_the_disk_is_full_the_same_command_goes_on_when_there_is_room(
    name: str, num_bytes: int, tmp_path: Path
) -> None:
    command = made(name, tmp_path)
    process = command.start(num_bytes=num_bytes)
    if process.wait(60):
        assert process.exit_code() == 70
        assert "make room" in process.said()
    assert command.start().wait(60) == 0
    assert command.expected is not None
    assert command.found() == dict.fromkeys(command.expected, 1)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_directory_that_can_not_be_written_is_a_wrong_setting(name: str, tmp_path: Path) -> None:
    command = made(name, tmp_path)
    output = READ_ONLY / command.output.name
    words = tuple(str(output) if word == str(command.output) else word for word in command.words)
    check(replace(command, words=words), 78, output, "choose another place")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_that_another_process_writes_is_refused(name: str, tmp_path: Path) -> None:
    command = made(name, tmp_path)
    # Runs by other strategies write other files into the same directory.
    output = command.output / "summary_percentile.json" if name == "filter-difficulty" else command.output
    with held(output):
        check(command, 78, output, "another process", "wait for its end")
