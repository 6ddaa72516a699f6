"""Secrets of every kind are planted in a run on real servers: none of them comes out anywhere.

`tests/unit/test_planted_secrets.py` plants them around mistakes in the settings, `tests/unit/test_masking.py` in what
libraries say, `tests/chart/test_secrets.py` in the values of the chart.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from rollstream.local.supervisor import Supervisor, stage_process
from rollstream.process.entry import run_process
from rollstream.schemas.topics import LEDGER, PROMPTS, SCORED
from rollstream.scorer.settings import ScorerSettings
from tests.harness import paid_environment
from tests.harness.builders import a_prompt
from tests.harness.forking import start_forked
from tests.harness.loops import STAGES
from tests.harness.planted import a_plain_secret, assert_absent
from tests.harness.planted_run import PlantedRun, Servers, a_planted_run, servers
from tests.harness.processes import StartedProcess
from tests.harness.waits import wait_until

COMMANDS = (
    ("status", "--json"), ("status", "--once"), ("acls", "print"), ("acls", "print", "--json"), ("acls", "check"),
    ("config", "--resolved"), ("config", "--resolved", "--json"), ("doctor",), ("doctor", "--json"),
    ("weights", "list"), ("weights", "list", "--json"), ("topics", "describe"), ("ledger", "check"),
    ("dead-letters", "list"), ("tail", "scored"), ("tail", "ledger"), ("schemas", "register"),
)  # fmt: skip


@pytest.fixture(scope="module")
def all_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("servers")) as started:
        yield started


@pytest.fixture(scope="module")
def ended(
    all_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PlantedRun, dict[str, str]]]:
    """A run that has trained, was killed at bad moments and lost servers; and what was seen while it went on."""
    with a_planted_run(all_servers, "planted", tmp_path_factory.mktemp("planted") / "run") as run:
        # Before the version is announced that it has just written.
        doomed = run.start("trainer", ROLLSTREAM_CRASH_AT="weights_written")
        for stage in STAGES[1:]:
            run.loop.keep_alive(stage, partial(run.start, stage))
        assert doomed.wait() == -9
        run.loop.keep_alive("trainer", partial(run.start, "trainer"))
        run.loop.until(lambda: steps(run) >= 2, "two optimizer steps")
        refuse_a_key(run)
        seen = {**run.probed(), **{" ".join(words): run.command(*words) for words in COMMANDS}}
        run.note_commands()
        run.loop.stages["scorer"].process.kill()
        lose_servers(run)
        yield run, seen


def steps(run: PlantedRun) -> int:
    return max((entry.step for entry in run.bus.read(LEDGER)), default=0)


def refuse_a_key(run: PlantedRun) -> None:
    """A prompt whose reward function shows its environment's key."""
    prompt = a_prompt(4711, run=run.run.name, environment=paid_environment.NAME, group_size=1)
    with run.bus.publisher("outside") as publisher:
        publisher.publish_soon(run.bus.out_record(PROMPTS, prompt)).result(30)
    run.loop.until(
        lambda: any(scored.scoring.failure for scored in run.bus.read(SCORED)), "the failure of the paid service"
    )


def lose_servers(run: PlantedRun) -> None:
    """The object store while versions are written, the registry at a start, Redis while generators count in it."""
    trainer = run.loop.stages.pop("trainer").process
    run.servers.s3.kill()
    run.loop.until(lambda: trainer.has_ended, "the trainer to miss the object store")
    assert trainer.exit_code() == 70, trainer.said()[-2000:]
    run.servers.registry.is_down = True
    assert run.start("producer", ROLLSTREAM_HEALTH_PORT="0").wait() == 70
    run.servers.redis.kill()
    generator = run.loop.stages["generator"].process
    run.loop.until(lambda: "Redis is gone" in generator.said(), "the generator to miss Redis")
    run.servers.registry.is_down = False
    run.servers.redis.start()
    run.servers.s3.start()
    for kept in run.loop.stages.values():
        kept.process.terminate()


PLACES: dict[str, tuple[Callable[[PlantedRun, dict[str, str]], dict[str, str]], tuple[str, ...]]] = {
    "logs": (lambda run, _: run.said(), ("settings of trainer", "Redis is gone", "Traceback", "HTTP 503")),
    "records": (
        lambda run, _: run.messages(),
        ("'prompts ", "'rollouts ", "'scored ", "'weights ", "'ledger ", "'producers ", "401 for"),
    ),
    "commands, metrics and probes": (lambda _, seen: seen, ("rollstream_trainer_step", "http://***@127.0.0.1")),
    "command lines": (lambda run, _: {"commands": "\n".join(run.commands)}, ("rollstream.environments.pool.child",)),
    "files": (lambda run, _: run.files(), ("/cache/",)),
}
"""Where a secret could be, and what must be found there, so that it was looked at."""


@pytest.mark.parametrize("place", PLACES)
def test_nothing_that_a_run_says_writes_or_leaves_holds_a_secret(
    place: str, ended: tuple[PlantedRun, dict[str, str]]
) -> None:
    outputs, shown = PLACES[place][0](*ended), PLACES[place][1]
    everything = "".join(f"{name!r} {text}" for name, text in outputs.items())
    assert [text for text in shown if text not in everything] == []
    assert_absent(ended[0].planted(), outputs)


def refusals(run: PlantedRun, wrong: str) -> dict[str, dict[str, str]]:
    """By what is wrong: the variables that make it so."""
    security = {**run.servers.secure.security("rollstream-trainer"), "sasl.password": wrong}
    return {
        "SASL": {f"ROLLSTREAM_KAFKA__SECURITY__{name.upper()}": value for name, value in security.items()},
        "S3": {"ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY": wrong, "AWS_SECRET_ACCESS_KEY": wrong},
        "swapped S3 keys": {"ROLLSTREAM_STORAGE__OPTIONS__ACCESS_KEY_ID": wrong},
        "registry": {"ROLLSTREAM_REGISTRY_URL": run.servers.registry.url.replace("://", f"://me:{wrong}@")},
        "password of the key": {"ROLLSTREAM_KAFKA__SECURITY__SSL.KEY.PASSWORD": wrong},
        "Redis": {"ROLLSTREAM_REDIS_URL": f"redis://:{wrong}@127.0.0.1:{run.servers.redis.port}"},
    }


SAID = {
    "SASL": "no broker answered",
    "S3": "may not list",
    "swapped S3 keys": "may not list",
    "registry": "HTTP 401",
    "password of the key": "the Kafka client refuses",
    "Redis": "Redis is gone",
}
CASES = [("SASL", stage) for stage in STAGES] + [
    ("S3", "trainer"), ("S3", "generator"), ("swapped S3 keys", "trainer"), ("registry", "trainer"),
    ("registry", "scorer"), ("password of the key", "generator"), ("Redis", "producer"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refused(all_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedRun]:
    with a_planted_run(all_servers, "refused", tmp_path_factory.mktemp("refused") / "run") as run:
        yield run


def test_a_stage_that_is_refused_says_so_without_the_secret_that_was_wrong(refused: PlantedRun) -> None:
    wrong = a_plain_secret()
    variables = refusals(refused, wrong)
    started = {case: refused.start(case[1], **variables[case[0]], ROLLSTREAM_HEALTH_PORT="0") for case in CASES}
    for (what, _), process in started.items():
        wait_until(partial(has_said, process, SAID[what]), partial(end_of_log, process))
    stop_all(started)
    assert_absent({**refused.planted(), "wrong": wrong}, refused.said())


def has_said(process: StartedProcess, text: str) -> bool:
    return text in process.said()


def end_of_log(process: StartedProcess) -> str:
    return f"a refusal: {process.said()[-2000:]}"


def stop_all(started: dict[tuple[str, str], StartedProcess]) -> None:
    """In order, but for those that go on looking for a broker for half a minute."""
    for (what, _), process in started.items():
        process.signal(signal.SIGKILL if what == "SASL" else signal.SIGTERM)
    for process in started.values():
        process.wait()


def test_the_scorers_driver_that_is_refused_says_so_without_the_password(refused: PlantedRun) -> None:
    wrong = a_plain_secret()
    log = refused.run.directory / "driver.log"
    process = start_forked(partial(serve_with, refused.run.config, wrong), log=log)
    with ExitStack() as at_the_end:
        at_the_end.callback(process.kill)
        wait_until(partial(has_said, process, "uthentication"), partial(end_of_log, process))
    assert_absent({**refused.planted(), "wrong": wrong}, {"log": process.said()})


def serve_with(config: Path, password: str) -> None:
    """Be a scorer's stream alone: the stage itself asks the broker by another client first."""
    from rollstream.process.logs import be_verbose
    from rollstream.scorer.loop import serve_stream

    os.environ["ROLLSTREAM_KAFKA__SECURITY__SASL.PASSWORD"] = password
    be_verbose()
    settings = ScorerSettings.load(config)

    async def nothing(_messages: object, _must_end: object) -> None:
        raise AssertionError("no message can come")

    run_process("scorer", lambda stop: serve_stream(settings, nothing, stop))


def test_a_supervisor_shows_no_secret_of_its_children(
    refused: PlantedRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = a_plain_secret()
    variables = {**refused.variables("producer"), **refusals(refused, wrong)["SASL"], "ROLLSTREAM_HEALTH_PORT": "0"}
    with caplog.at_level(logging.DEBUG), Supervisor(tmp_path) as supervisor:
        child = stage_process("producer", refused.run.config, env=variables)
        supervisor.start(child)
        wait_until(lambda: "no broker answered" in supervisor.ends_of_logs(), "the child's refusal")
        supervisor.kill("producer")
        wait_until(lambda: is_restarted(supervisor), "the child's restart")
        outputs = {
            "statuses": f"{supervisor.statuses()} {child}",
            "command": " ".join(child.command),
            "ends": supervisor.ends_of_logs(),
        }
    outputs |= {str(path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert_absent({**refused.planted(), "wrong": wrong}, {**outputs, "log": caplog.text})


def is_restarted(supervisor: Supervisor) -> bool:
    supervisor.tick()
    return supervisor.status("producer").restarts > 0


# A process of its own, since a default may be taken from the environment when its module is imported.
_HELPS = """
import click
from rollstream.cli.main import cli

def show(command, words):
    context = click.Context(command, info_name=" ".join(words), show_default=True)
    print(command.get_help(context))
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        show(command.get_command(context, name), [*words, name])

show(cli, ["rollstream"])
"""


def test_no_help_shows_what_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {name: a_plain_secret() for name in ("Redis", "registry", "SASL", "S3", "key", "config", "host")}
    for name, value in {
        "ROLLSTREAM_REDIS_URL": f"redis://:{planted['Redis']}@host",
        "ROLLSTREAM_REGISTRY_URL": f"https://me:{planted['registry']}@host",
        "ROLLSTREAM_KAFKA__SECURITY": f'{{"sasl.password": "{planted["SASL"]}"}}',
        "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY": planted["S3"],
        "ROLLSTREAM_KAFKA__SECURITY__SSL.KEY.PASSWORD": planted["key"],
        "ROLLSTREAM_CONFIG": f"https://me:{planted['config']}@host",
        "ROLLSTREAM_HEALTH_HOST": planted["host"],
    }.items():
        monkeypatch.setenv(name, value)
    shown = subprocess.run(
        [sys.executable, "-c", _HELPS], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for words in ("rollstream", "rollstream schemas register", "rollstream weights rollback"):
        assert f"Usage: {words} " in shown
    assert_absent(planted, {"help": shown})
