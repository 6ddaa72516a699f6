"""What docker-compose.yml would start runs: its commands and environments, as processes on a local Kafka and Redis.

Only what a container would change is changed: addresses, paths and the health port. The engine is the scripted one, so
that no test waits for vLLM, and the model is warmed up by one step.
"""

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from rollstream.local.ports import free_ports
from tests.chaos.accounting import OutsideClient
from tests.compose.compose_file import ROOT, STAGES, Project, example_project, is_path, mounts
from tests.harness.forking import start_command
from tests.harness.processes import StartedProcess, start_process
from tests.harness.waits import wait_until

NUM_STEPS = 2
STEPS_SECONDS = 120.0


@dataclass
class Containers:
    """The services of a project as processes; `directory` holds their volumes."""

    project: Project
    directory: Path
    replaced: dict[str, str]
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(STAGES, free_ports(len(STAGES)), strict=True)))
    running: dict[str, StartedProcess] = field(default_factory=dict)

    def run(self, service: str) -> str:
        """Start a one-shot and wait for its end, which must be a good one; what it said."""
        process = self.start(service)
        assert process.wait() == 0, process.said()
        return process.said()

    def start(self, service: str) -> StartedProcess:
        """Start `rollstream` with the service's words."""
        return self._start(service, service, self.project.all_services[service]["command"])

    def is_healthy(self, service: str) -> bool:
        """Whether the service's health check succeeds, run as the container would."""
        kind, program, *words = self.project.all_services[service]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "rollstream")
        return self._start(service, f"{service}-check", words).wait() == 0

    def what_is_ill(self, service: str) -> str:
        """What was waited for, with what the service and the one before it in the loop said."""
        said = {name: self.running[name].said()[-2000:] for name in (service, f"{service}-check", "trainer")}
        return f"the {service}'s health check:\n" + "\n".join(f"{name}: {text}" for name, text in said.items())

    def start_model(self) -> StartedProcess:
        """Start the shell words of the service that makes the model, with one step of warm-up."""
        service = self.project.all_services["model"]
        script = service["command"][0].replace("--until-accuracy 0.15", "--max-steps 1")
        environment = self.environment("model") | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        process = start_process([*service["entrypoint"], script], log=self.directory / "model.log", env=environment)
        self.running["model"] = process
        return process

    def environment(self, service: str) -> dict[str, str]:
        """What the container gets, with addresses and paths of this machine."""
        return {name: self._here(service, value) for name, value in self.project.environment(service).items()}

    def path(self, service: str, inside: str) -> Path:
        """Where a path of the container lies here: in a volume's directory, or in the repository."""
        for target, (source, _) in mounts(self.project.all_services[service]).items():
            if Path(inside).is_relative_to(target):
                where = ROOT / source if is_path(source) else self._volume(source)
                return where / Path(inside).relative_to(target)
        raise AssertionError(f"{service} mounts nothing at {inside}")

    def _volume(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return directory

    def _here(self, service: str, value: str) -> str:
        if value == self.project.environment(service).get("ROLLSTREAM_CONFIG"):
            return str(self._settings_file(service, value))
        if value.startswith("/"):
            return str(self.path(service, value))
        return self.replaced.get(value, value)

    def _settings_file(self, service: str, inside: str) -> Path:
        """A copy of the settings file in which the mounted paths are those of this machine."""
        text = self.path(service, inside).read_text()
        for name in ("weights", "checkpoints", "cache"):
            text = text.replace(f'"/{name}', f'"{self.directory / name}')
        copied = self.directory / "rollstream.toml"
        copied.write_text(text)
        return copied

    def _start(self, service: str, log: str, words: list[str]) -> StartedProcess:
        # The image sets the port; every container has its own.
        more = {"ROLLSTREAM_HEALTH_PORT": str(self.ports[service])} if service in self.ports else {}
        if service == "generator":
            more["ROLLSTREAM_ENGINE__KIND"] = "scripted"
        environment = {"OMP_NUM_THREADS": "1"} | self.environment(service) | more
        process = start_command(*words, log=self.directory / f"{log}.log", env=environment)
        self.running[log] = process
        return process


@pytest.fixture
def containers(kafka: str, redis_url: str, topic_prefix: str, tmp_path: Path) -> Iterator[Containers]:
    project = example_project(ROLLSTREAM_RUN=topic_prefix, ROLLSTREAM_NUM_STEPS=str(NUM_STEPS))
    given = project.environment("trainer")
    replaced = {given["ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS"]: kafka, given["ROLLSTREAM_REDIS_URL"]: redis_url}
    started = Containers(project, tmp_path, replaced)
    try:
        yield started
    finally:
        for process in started.running.values():
            process.kill()


def test_the_services_make_topics_and_a_model_and_learn(containers: Containers, topic_prefix: str, kafka: str) -> None:
    making = containers.start_model()
    assert f"created {topic_prefix}.prompts" in containers.run("topics")
    assert making.wait() == 0, making.said()
    model = Path(containers.environment("model")["MODEL"])
    made = {path: path.stat().st_mtime_ns for path in model.iterdir()}
    # `docker compose up` runs the one-shots again each time.
    assert "is there already" in containers.run("topics")
    assert containers.start_model().wait() == 0
    assert {path: path.stat().st_mtime_ns for path in model.iterdir()} == made

    for stage in ("trainer", "generator", "scorer", "producer"):
        containers.start(stage)
    for stage in ("generator", "scorer", "producer"):
        wait_until(partial(containers.is_healthy, stage), partial(containers.what_is_ill, stage), every_seconds=1.0)
    trainer = containers.running["trainer"]
    assert trainer.wait(STEPS_SECONDS) == 0, trainer.said()[-3000:]
    assert OutsideClient(kafka, topic_prefix).steps() == NUM_STEPS
    assert any((containers.directory / "weights").iterdir())
    assert any((containers.directory / "checkpoints").iterdir())
    stages = ("generator", "scorer", "producer")
    for stage in stages:
        containers.running[stage].signal(signal.SIGTERM)
    for stage in stages:
        grace = float(containers.project.all_services[stage]["stop_grace_period"].removesuffix("s"))
        assert containers.running[stage].wait(grace) == 0, containers.running[stage].said()[-3000:]
