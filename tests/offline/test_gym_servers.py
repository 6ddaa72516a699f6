"""`ng_run` as a process: its commands work as the document types them, and nothing is left of it."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from rollstream.gym.packaged_files import packaged_or_own
from tests.harness.gym_runs import indices, read
from tests.harness.gym_stack import COUNTER, KEY, MULTI_STEP, OPENAI_MODEL, GymStack, gym_stack
from tests.harness.scripted_model import calls, says, scripted_model
from tests.harness.waits import wait_until

ROWS = "resources_servers/example_multi_step/data/example.jsonl"
AGENT = "example_multi_step_simple_agent"
RESOURCES = "example_multi_step_resources_server"


def test_g1_g2_g6_the_documents_commands_run_from_a_fresh_directory(tmp_path: Path) -> None:
    """Three servers are healthy; 5 rows by 2 rollouts call tools four times each, and are right."""
    with scripted_model() as model, gym_stack(tmp_path, model) as stack:
        code, said = stack.ended("status")
        assert code == 0, said
        assert "3 servers found (3 healthy, 0 unhealthy)" in said
        assert all(name in said for name in ("policy_model", AGENT, RESOURCES))
        code, said = stack.ended(
            "collect_rollouts", f"+agent_name={AGENT}", f"+input_jsonl_fpath={ROWS}",
            "+output_jsonl_fpath=results/example_multi_step_rollouts.jsonl", "+limit=5", "+num_repeats=2",
            "+num_samples_in_parallel=3", "+responses_create_params.max_output_tokens=8192",
        )  # fmt: skip
        assert code == 0, said
        instances = stack.instances
    rollouts = read(tmp_path / "results/example_multi_step_rollouts.jsonl")
    assert indices(rollouts) == [(task, rollout) for task in range(5) for rollout in range(2)]
    assert {row["reward"] for row in rollouts} == {1.0}
    assert {row["metadata"]["tool_calls_made"] for row in rollouts} == {4}
    # What the tools said, by the items themselves.
    for row in rollouts:
        items = row["response"]["output"]
        asked = [json.loads(one["arguments"]) for one in items if one.get("name") == "get_synonym_value"]
        answers = [json.loads(one["output"]) for one in items if one["type"] == "function_call_output"]
        assert [sum(map(ord, one["synonym"])) for one in asked] == [one["synonym_value"] for one in answers[:3]]
    # Rows reach the verifier as they are: what it gives back has all of their fields.
    given = [json.loads(line) for line in packaged_or_own(Path(ROWS)).read_text().splitlines()]
    for row in rollouts:
        expected = {**given[row["_ng_task_index"]]}
        del expected["responses_create_params"]
        assert {name: row[name] for name in expected} == expected
    assert model.keys == {f"Bearer {KEY}"}
    assert {(body["model"], body["max_output_tokens"]) for body in model.asked} == {("tiny", 8192)}
    assert not any(KEY in Path(one["log"]).read_text() for one in instances.values())


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    with scripted_model() as model, gym_stack(tmp_path, model) as stack:
        processes = stack.processes
        assert len(processes) >= 4  # the three servers, and the process of the tools' class
        stack.process.signal(signal.SIGINT)
        assert stack.process.wait(30) == 0
        assert "all servers have ended" in stack.process.said()
        wait_until(lambda: not any(map(psutil.Process.is_running, processes)), "all processes end")


def test_a_kill_of_the_command_leaves_no_process(tmp_path: Path) -> None:
    with scripted_model() as model, gym_stack(tmp_path, model) as stack:
        processes = stack.processes
        stack.process.kill()
        wait_until(lambda: not any(map(psutil.Process.is_running, processes)), "all processes end")


def test_a_killed_server_is_said_and_started_again_and_its_sessions_are_not_wrong_but_unresolved(
    tmp_path: Path,
) -> None:
    """The counter dies between two calls of a rollout: that rollout has no reward, and the next ones go on."""
    killed = list[int]()

    def answer(items: list[dict]) -> list[dict]:  # type: ignore[type-arg]
        done = sum(item.get("type") == "function_call_output" for item in items)
        if done == 1 and not killed:
            killed.append(stack.instances["example_session_state_mgmt_resources_server"]["pid"])
            os.kill(killed[0], signal.SIGKILL)
            name = "example_session_state_mgmt_resources_server"
            wait_until(lambda: stack.instances[name]["restarts"] == 1 and stack.ended("status")[0] == 0, "a new one")
        by = items[0]["content"].split()[1]
        return [calls("increment_counter", {"count": int(by)})] if done < 1 else later(done)

    def later(done: int) -> list[dict]:  # type: ignore[type-arg]
        return [calls("get_counter_value", {})] if done == 1 else [says("done")]

    rows = "resources_servers/example_session_state_mgmt/data/example.jsonl"
    with scripted_model(answer=answer) as model, gym_stack(tmp_path, model, OPENAI_MODEL, COUNTER) as stack:
        code, said = stack.ended(
            "collect_rollouts", "+agent_name=example_session_state_mgmt_simple_agent", f"+input_jsonl_fpath={rows}",
            "+output_jsonl_fpath=rollouts.jsonl", "+num_samples_in_parallel=1", "+max_attempts=1",
        )  # fmt: skip
        shown = stack.ended("status")[1]
    assert code == 0, said
    assert "started again 1 times" in shown
    assert Counter(row["reward"] for row in read(tmp_path / "rollouts.jsonl")) == {1.0: 4}
    [failure] = read(tmp_path / "rollouts_failures.jsonl")
    assert "/run answered 502" in failure["message"]
    assert "not open any more" in failure["message"]


def test_a_taken_port_and_a_server_that_ends_at_once_are_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "box: {resources_servers: {box: {entrypoint: tests.harness.no_such_module.Box}}}\n"
    )
    with scripted_model() as model:
        first = GymStack(tmp_path, model, "bad.yaml")
        assert first.process.wait(60) == 70
        assert "box ended with exit code 78" in first.process.said()
        with gym_stack(tmp_path, model, OPENAI_MODEL, MULTI_STEP) as stack:
            code, said = stack.ended("run", f"+config_paths=[{OPENAI_MODEL},{MULTI_STEP}]")
            assert (code, f"port {stack.port} of the head server is in use" in said) == (78, True)


def test_a_program_of_ones_own_finds_its_configuration_as_gym_gives_it(tmp_path: Path) -> None:
    """`KIND/IMPLEMENTATION/app.py` of the working directory runs as a process, under the original's variables."""
    place = tmp_path / "resources_servers/mine"
    place.mkdir(parents=True)
    (place / "app.py").write_text(PROGRAM)
    (tmp_path / "mine.yaml").write_text("mine: {resources_servers: {mine: {entrypoint: app.py}}}\n")
    with scripted_model() as model, gym_stack(tmp_path, model, "mine.yaml") as stack:
        said = httpx.get(stack.instances["mine"]["url"]).json()
    assert said == {"mine": {"resources_servers": {"mine": said["mine"]["resources_servers"]["mine"]}}}


@pytest.mark.parametrize("script", ["ng_run", "ng_status", "ng_dump_config"])
def test_each_script_is_there(script: str) -> None:
    import sys

    assert Path(sys.executable).with_name(script).is_file()


PROGRAM = """
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
import yaml
config, name = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"]), os.environ["NEMO_GYM_CONFIG_PATH"]

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({name: config[name]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

place = config[name]["resources_servers"]["mine"]
HTTPServer((place["host"], place["port"]), Answer).serve_forever()
"""
