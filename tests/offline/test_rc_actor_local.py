"""`rollstream rc-actor-local`: whatever ends it, no server is left."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from rollstream.cli.entry import main
from rollstream.local.ports import free_ports
from rollstream.local.tiny_model import write_tiny_model
from rollstream.rc_actor.lines import SingleStreamSpec
from rollstream.rc_actor.local import server_words
from rollstream.rc_actor.reading import read_settings
from rollstream.rc_actor.streams import backend_named, read_stream
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.waits import wait_until

TINY: Final = (
    "vllm_kwargs={dtype: float32, max_model_len: 512, max_num_seqs: 16, enforce_eager: true, "
    "kv_cache_memory_bytes: 67108864}"
)


def be_command(folder: Path, *words: str) -> None:
    os.chdir(folder)
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
    sys.argv = ["rollstream", "rc-actor-local", "--config-name", "test_rc", *words]
    main()


def started(folder: Path, *words: str) -> StartedProcess:
    return start_forked(partial(be_command, folder, *words), log=folder / "command.log")


@contextmanager
def running(folder: Path) -> Iterator[tuple[StartedProcess, list[psutil.Process]]]:
    """The command, whose two servers have begun to start."""
    port = next(port for port in free_ports(20) if port + 1 < 32_000)
    words = ["output_dir=out", "model_path=tiny", "world.replicas=2", f"world.first_port={port}"]
    command = started(folder, *words)

    servers: list[psutil.Process] = []

    def have_begun() -> bool:
        found = psutil.Process(command.pid).children() if not command.has_ended else []
        servers[:] = [one for one in found if "vllm.entrypoints.openai.api_server" in " ".join(one.cmdline())]
        return command.has_ended or len(servers) == 2

    try:
        wait_until(have_begun, command.said)
        yield command, servers
    finally:
        command.kill()


def none_is_left(processes: list[psutil.Process]) -> bool:
    return len(processes) == 2 and not any(map(psutil.Process.is_running, processes))


@pytest.mark.timeout(600)
def test_servers_are_started_asked_and_ended(tmp_path: Path) -> None:
    """vLLM with a tiny model on the CPU: two problems, three cycles each, and no process afterwards."""
    write_tiny_model(tmp_path / "model", seed=1)
    port = free_ports(1)[0]
    command = started(
        tmp_path, "output_dir=out", f"model_path={tmp_path / 'model'}", f"world.first_port={port}",
        "train_subset={begin: 0, end: 2}", "llm.parameters.max_tokens=16",
        'actor.reasoning_prompt_template="{problem}|{curr_summary}"',
        'actor.summarization_prompt_template="{problem}|{existing_summary}|{reasoning}"', f"++vllm_config.{TINY}",
    )  # fmt: skip
    try:
        wait_until(lambda: command.has_ended or "the actor starts" in command.said(), command.said, 500)
        left = [] if command.has_ended else psutil.Process(command.pid).children(recursive=True)
        assert command.wait() == 0, command.said()
    finally:
        command.kill()
    assert left
    wait_until(lambda: not any(map(psutil.Process.is_running, left)), "all processes end")
    assert "rc_actor: 2 groups are published, 0 have failed" in command.said()
    with read_stream(SingleStreamSpec(tmp_path / "out", "rc_actor"), backend=backend_named("files")) as reader:
        found = list(reader.read())
    for group in found:
        steps = [[text["metadata"][key] for key in ("cycle_step", "turn_type", "turn_number")] for text in group]
        assert steps == [[step, ("reasoning", "summarization")[step % 2], step // 2 + 1] for step in range(6)]
        assert all(text["input_ids"] and text["logprobs"] for text in group)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_servers(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path) as (command, servers):
        command.signal(number)
        assert command.wait() == 130
        assert "all servers have ended" in command.said()
        wait_until(lambda: none_is_left(servers), "all servers end")


def test_a_server_that_ends_is_said_with_its_log_and_no_other_is_left(tmp_path: Path) -> None:
    with running(tmp_path) as (command, servers):
        servers[0].kill()
        assert command.wait() > 0
        assert "a vLLM server ended with exit code -9; the end of" in command.said()
        wait_until(lambda: none_is_left(servers), "all servers end")


def test_a_kill_of_the_command_leaves_no_server(tmp_path: Path) -> None:
    with running(tmp_path) as (command, servers):
        command.kill()
        wait_until(lambda: none_is_left(servers), "all servers end")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["output_dir=out", "me.llm_urls=http://localhost:8000/v1"], "me.llm_urls is set by rc-actor-local"),
        (["output_dir=out", "world.replicas=65"], "world.replicas: must be less than or equal to 64, got 65"),
        ([], "output_dir is missing"),
    ],
)
def test_wrong_keys_end_it_before_a_server_starts(words: list[str], why: str, tmp_path: Path) -> None:
    command = started(tmp_path, *words)
    assert command.wait() > 0
    assert why in command.said()
    assert not (tmp_path / "out").exists()


def test_options_of_vllm_are_typed_as_flags() -> None:
    given = "++vllm_config.vllm_kwargs={max_model_len: 512, enforce-eager: true, disable_log_stats: null, sleep: false}"
    settings = read_settings("test_rc", ["output_dir=out", "model_path=tiny", given])
    assert " ".join(server_words(settings, 8081)) == (
        "--model tiny --served-model-name tiny --host 127.0.0.1 --port 8081 --logprobs-mode processed_logprobs "
        "--max-model-len 512 --enforce-eager --disable-log-stats --no-sleep"
    )
