"""A model that vLLM divides: over two processes of one machine, and over two machines, played by two process trees."""

import shutil
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from rollstream.engines.protocol import Generation
from rollstream.engines.settings import NodesSettings
from rollstream.local.ports import free_ports
from rollstream.local.tiny_model import VOCABULARY
from tests.harness import engine_scenarios as scenario
from tests.harness.broken_weights import declare_other_type
from tests.harness.engine_fixtures import EngineHosts, engine_hosts, models
from tests.harness.engine_host import START_VERSION
from tests.harness.processes import StartedProcess, start_process
from tests.harness.teacher_forcing import forced_logprobs
from tests.harness.waits import wait_until

__all__ = ["engine_hosts", "models"]

TIED, UNTIED = "vllm-tied-keep-divided", "vllm-untied-recompute-divided"
NEW = START_VERSION + 1
ASKED = [{"seed": seed, "max_tokens": 60} for seed in range(8)]
LONG = [{"seed": seed, "max_tokens": 200} for seed in range(8)]
NOT_REACHED = "has not reached this machine yet"
PROMPT = np.array([VOCABULARY.index(character) for character in scenario.QUESTION], dtype=np.int32)


def difference(answers: list[Generation], weights: Path) -> float:
    """Mean |logprob - that of these weights| over all tokens, by teacher forcing."""
    found = [
        np.abs(answer.behavior_logprobs - forced_logprobs(weights, PROMPT, answer.token_ids, 1.0)) for answer in answers
    ]
    return float(np.concatenate(found).mean())


@pytest.mark.parametrize("name", [TIED, UNTIED])
def test_a_reload_replaces_the_weights_of_every_process(name: str, engine_hosts: EngineHosts) -> None:
    host, versions = engine_hosts.get(name), engine_hosts.versions(name)
    before = host.run(scenario.generate, ASKED)
    assert difference(before, versions.old) < 1e-4
    during = host.run(scenario.load_while_generating, ASKED, NEW, (START_VERSION, versions.old), versions.new)
    after = host.run(scenario.generate, ASKED)
    host.run(scenario.load, START_VERSION, versions.old)
    assert {span.weight_version for answer in after for span in answer.weight_spans} == {NEW}
    assert difference(after, versions.new) < 1e-4
    assert difference(after, versions.old) > 0.05
    assert len([answer for answer in during if len(answer.weight_spans) == 2]) >= 3


def test_what_the_settings_say_of_gpus_memory_and_steps_is_what_vllm_was_told(engine_hosts: EngineHosts) -> None:
    settings = engine_hosts.settings(TIED)
    told = engine_hosts.get(TIED).run(scenario.vllm_configuration)
    assert told == {
        "tensor_parallel_size": 2,
        "nodes": (1, 0, settings.nodes.leader, settings.nodes.port),
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }
    assert None not in told.values()


def test_a_plain_reload_of_tied_embeddings_leaves_the_old_head_and_the_check_finds_it(
    engine_hosts: EngineHosts,
) -> None:
    host, versions = engine_hosts.get(TIED), engine_hosts.versions(TIED)
    problem = host.run(scenario.reload_plainly, NEW, versions.new)
    wrong = host.run(scenario.generate, ASKED)
    host.run(scenario.load, NEW, versions.new)
    right = host.run(scenario.generate, ASKED)
    host.run(scenario.load, START_VERSION, versions.old)
    assert problem.count("output head") == 2
    assert difference(wrong, versions.new) > 0.05
    assert difference(right, versions.new) < 1e-4


def test_an_error_in_the_pause_of_an_update_ends_every_process(engine_hosts: EngineHosts, tmp_path: Path) -> None:
    host = engine_hosts.get(UNTIED)
    host.run(scenario.generate, ASKED[:1])
    children = host.forked()
    broken = tmp_path / "broken"
    shutil.copytree(engine_hosts.versions(UNTIED).new, broken)
    declare_other_type(broken / "model.safetensors")
    problem, running, later = host.run(scenario.load_refusal_while_generating, LONG, NEW, broken)
    engine_hosts.close(UNTIED)
    assert problem.startswith("EngineDeadError: ")
    assert set(running) != {"accepted"}
    assert "vLLM is not running" in later
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


def test_no_process_of_a_divided_model_outlives_its_generator(engine_hosts: EngineHosts) -> None:
    host = engine_hosts.get(UNTIED)
    host.run(scenario.generate, ASKED[:1])
    children = host.forked()
    assert len(children) >= 3  # the engine, and a worker for each part
    host.kill()
    engine_hosts.close(UNTIED)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


@pytest.fixture
def nodes() -> NodesSettings:
    """Two machines, both of them this one."""
    return NodesSettings(count=2, port=free_ports(1)[0])


@pytest.fixture
def health_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def lender(
    nodes: NodesSettings, health_port: int, engine_hosts: EngineHosts, tmp_path: Path
) -> Iterator[StartedProcess]:
    """`rollstream generator` on the second machine, where it asks neither Kafka nor a weight store."""
    engine = engine_hosts.settings(TIED)
    (tmp_path / "rollstream.toml").write_text(
        f'run = "divided"\nhealth_port = {health_port}\n[kafka]\nbootstrap_servers = "127.0.0.1:9"\n'
        f'[generator.engine]\nmodel_path = "{engine.model_path}"\nmax_model_len = {engine.max_model_len}\n'
        f"max_num_seqs = {engine.max_num_seqs}\nkv_cache_bytes = {engine.kv_cache_bytes}\nenforce_eager = true\n"
        f"tensor_parallel_size = 2\n[generator.engine.nodes]\ncount = 2\nport = {nodes.port}\n"
    )
    variables = {"ROLLSTREAM_ENGINE__NODES__RANK": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rollstream.cli.main", "generator", "--config", str(tmp_path / "rollstream.toml")]
    process = start_process(command, log=tmp_path / "log", env=variables)
    yield process
    process.kill()


def readiness(port: int) -> str:
    """What /readyz says; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""


def test_a_model_divided_over_two_machines_reloads_on_both_and_ends_on_both(
    lender: StartedProcess, nodes: NodesSettings, health_port: int, engine_hosts: EngineHosts
) -> None:
    versions = engine_hosts.versions(TIED)
    wait_until(lambda: NOT_REACHED in readiness(health_port), lender.said, 60.0)
    host = engine_hosts.start(TIED, nodes=nodes)
    try:
        before = host.run(scenario.generate, ASKED)
        wait_until(lambda: readiness(health_port) == "ok\n", lender.said)
        host.run(scenario.load, NEW, versions.new)
        after = host.run(scenario.generate, ASKED)
        parts = psutil.Process(lender.pid).children(recursive=True)
        host.kill()
        assert lender.wait(60.0) == 70
    finally:
        host.close()
    assert difference(before, versions.old) < 1e-4
    assert difference(after, versions.new) < 1e-4
    assert "all machines of this generator must start again" in lender.said()
    assert parts
    _, alive = psutil.wait_procs(parts, timeout=20)
    assert alive == []


def test_a_machine_that_is_asked_to_end_ends_at_once_in_order(lender: StartedProcess, health_port: int) -> None:
    wait_until(lambda: NOT_REACHED in readiness(health_port), lender.said, 60.0)
    lender.signal(signal.SIGTERM)
    assert lender.wait(10.0) == 0
