"""The supervisor with real child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollstream.local.keep_alive import Backoff, StageState
from rollstream.local.processes import Placement
from rollstream.local.supervisor import StageProcess, Supervisor, stage_process
from rollstream.schemas.topics import PROMPTS
from tests.harness.processes import runs
from tests.harness.running import a_run
from tests.harness.waits import wait_until

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path, backoff=Backoff(first_seconds=0.05, longest_seconds=0.2)) as supervisor:
        yield supervisor


def python(name: str, program: str, **rest: object) -> StageProcess:
    return StageProcess(name=name, command=(sys.executable, "-c", program), **rest)  # type: ignore[arg-type]


def ticked(supervisor: Supervisor, condition: Callable[[], bool]) -> Callable[[], bool]:
    def check() -> bool:
        supervisor.tick()
        return condition()

    return check


def test_a_child_that_dies_is_restarted_until_it_finishes(supervisor: Supervisor, tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
log = Path({str(tmp_path / "starts")!r})
log.open("a").write("x")
raise SystemExit(0 if len(log.read_text()) == 3 else 70)
"""
    supervisor.start(python("scorer", program))
    wait_until(
        ticked(supervisor, lambda: supervisor.status("scorer").state is StageState.FINISHED), "the third start to end"
    )
    status = supervisor.status("scorer")
    assert (status.restarts, status.exit_code, status.pid) == (2, 0, None)


def test_a_killed_child_is_restarted(supervisor: Supervisor) -> None:
    supervisor.start(python("generator", SLEEP))
    first = supervisor.status("generator").pid
    supervisor.kill("generator")
    wait_until(ticked(supervisor, lambda: supervisor.status("generator").restarts == 1), "one restart")
    status = supervisor.status("generator")
    assert status.state is StageState.RUNNING
    assert status.exit_code == -signal.SIGKILL
    assert status.pid != first


def test_a_killed_stage_goes_on_where_it_was(
    supervisor: Supervisor, kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.tables["producer"] = {"environment": "sort_digits", "share": 5}
        supervisor.start(stage_process("producer", run.config))
        wait_until(ticked(supervisor, lambda: len(run.records(PROMPTS)) == 5), "its share to be submitted")
        supervisor.kill("producer")
        log = supervisor.status("producer").log
        wait_until(ticked(supervisor, lambda: "5 of 5 groups outstanding" in log.read_text()), "its second start")
        supervisor.stop("producer")
        assert (supervisor.status("producer").restarts, supervisor.status("producer").exit_code) == (1, 0)
        assert len({prompt.group_id for prompt in run.records(PROMPTS)}) == 5


@pytest.mark.parametrize(
    ("exit_code", "state"), [(0, StageState.FINISHED), (75, StageState.FENCED), (78, StageState.MISCONFIGURED)]
)
def test_a_finished_fenced_or_misconfigured_child_is_not_restarted(
    supervisor: Supervisor, exit_code: int, state: StageState
) -> None:
    supervisor.start(python("trainer", f"raise SystemExit({exit_code})"))
    wait_until(ticked(supervisor, lambda: supervisor.status("trainer").state is state), f"the trainer to be {state}")
    for _ in range(20):
        time.sleep(0.02)
        supervisor.tick()
    assert supervisor.status("trainer").restarts == 0


def test_the_waits_between_restarts_double_up_to_a_bound() -> None:
    backoff = Backoff(first_seconds=0.5, longest_seconds=30.0)
    assert [backoff.delay(n) for n in (1, 2, 3, 7, 1000)] == [0.5, 1.0, 2.0, 30.0, 30.0]


def test_stop_ends_children_that_ignore_sigterm_and_what_they_started(supervisor: Supervisor, tmp_path: Path) -> None:
    pid_file = tmp_path / "grandchild"
    stubborn = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
open({str(pid_file)!r}, "w").write(str(grandchild.pid) + "\\n")
time.sleep(600)
"""
    supervisor.start(python("stubborn", stubborn))
    supervisor.start(python("polite", SLEEP))
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), "the grandchild to run")
    pids = [status.pid for status in supervisor.statuses()] + [int(pid_file.read_text())]
    supervisor.stop(grace_seconds=0.5)
    wait_until(lambda: not any(runs(pid) for pid in pids), "every process to be gone", 20.0)
    assert [status.exit_code for status in supervisor.statuses()] == [-signal.SIGKILL, -signal.SIGTERM]
    supervisor.tick()
    assert {status.state for status in supervisor.statuses()} == {StageState.STOPPED}


def test_a_child_has_its_environment_log_and_place(supervisor: Supervisor, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    shown = "e['COLOR'], e['OMP_NUM_THREADS'], e['OMP_WAIT_POLICY'], os.sched_getaffinity(0)"
    program = f"import os; e = os.environ; print({shown})"
    spec = python("engine", program, env={"COLOR": "blue"}, placement=Placement(cores=frozenset({core})))
    supervisor.start(spec)
    wait_until(ticked(supervisor, lambda: supervisor.status("engine").state is StageState.FINISHED), "it to finish")
    assert (tmp_path / "logs" / "engine.log").read_text() == f"blue 1 PASSIVE {{{core}}}\n"


def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from rollstream.local.supervisor import StageProcess, Supervisor
supervisor = Supervisor(Path({str(tmp_path)!r}))
supervisor.start(StageProcess(name="stage", command=(sys.executable, "-c", {SLEEP!r})))
print(supervisor.status("stage").pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert runs(child)
        owner.kill()
    wait_until(lambda: not runs(child), "the child to be gone", 20.0)
