"""A run on real servers that all demand secrets, and everything that its processes put anywhere while it goes on."""

import secrets
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil
from click.testing import CliRunner
from pydantic import SecretStr

from rollstream.bus import run as bus_run
from rollstream.bus.acl_rules import ROLES
from rollstream.cli.main import cli
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.topics import TOPICS
from tests.harness import paid_environment
from tests.harness.forking import start_command
from tests.harness.loops import STAGES, Loop, a_loop
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.s3_fixtures import BUCKET, KEY, SECRET, S3Server, an_s3_server
from tests.harness.secure_kafka import ADMIN, SecureKafka, a_secure_cluster, key_password_of, password_of
from tests.harness.small_registry import SmallRegistry, a_small_registry

PROBES = ("metrics", "livez", "readyz", "livez?verbose", "readyz?verbose")


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Kafka, Redis, a registry and an S3 server. Nobody comes in without a secret."""

    secure: SecureKafka
    redis: RedisServer
    registry: SmallRegistry
    registry_password: str
    redis_password: str
    s3: S3Server

    @property
    def registry_url(self) -> str:
        """With user and password."""
        return self.registry.url.replace("://", f"://registrar:{self.registry_password}@")

    def planted(self) -> dict[str, str]:
        """Every secret that these servers demand, by what it is for."""
        users = (ADMIN, *(f"rollstream-{stage}" for stage in STAGES))
        return {
            "Redis": self.redis_password,
            "registry": self.registry_password,
            "S3": SECRET,
            **{f"SASL of {user}": password_of(user) for user in users},
            **{f"password of the key of {user}": key_password_of(user) for user in users},
            **{f"key of {user}": self.secure.authority.issue(user).key.read_text() for user in users},
        }


@contextmanager
def servers(directory: Path) -> Iterator[Servers]:
    """All of them, fresh."""
    with ExitStack() as parts:
        registry_password, redis_password = (secrets.token_hex(16) for _ in range(2))
        secure = parts.enter_context(a_secure_cluster(directory / "kafka"))
        secure.add_users(*(f"rollstream-{role}" for role in ROLES))
        redis = RedisServer(directory / "redis", free_ports(1)[0], password=SecretStr(redis_password))
        parts.callback(redis.kill)
        redis.start()
        (directory / "s3").mkdir()
        yield Servers(
            secure=secure,
            redis=redis,
            registry=parts.enter_context(a_small_registry(f"registrar:{registry_password}")),
            registry_password=registry_password,
            redis_password=redis_password,
            s3=parts.enter_context(an_s3_server(directory / "s3")),
        )


@dataclass(kw_only=True)
class PlantedRun:
    """A run on them. The file is an administrator's; each stage has its own user from the environment."""

    servers: Servers
    loop: Loop
    ports: Mapping[str, int]
    key: str
    commands: list[str] = field(default_factory=list)

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.loop.run

    @cached_property
    def bus(self) -> bus_run.Run:
        """As a program sees it that has the run's file."""
        return bus_run.Run(StageSettings.load(self.run.config))

    def planted(self) -> dict[str, str]:
        """All that must be nowhere."""
        return {**self.servers.planted(), "an environment's option": self.key}

    def variables(self, stage: str) -> dict[str, str]:
        """What a secret store hands to the stage; the rest stands in the file."""
        return {
            **self.servers.secure.variable(f"rollstream-{stage}"),
            "AWS_SECRET_ACCESS_KEY"
            if stage == "generator"
            else "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY": SECRET,
            "ROLLSTREAM_HEALTH_PORT": str(self.ports[stage]),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, stage: str, **env: str) -> StartedProcess:
        """Start a stage that says all that it can say."""
        words = (stage, "-v", "--config", str(self.run.config))
        log = self.run.directory / f"{len(self.run.running)}.log"
        process = start_command(*words, log=log, env={**self.variables(stage), **env})
        self.run.running.append(process)
        return process

    def said(self) -> dict[str, str]:
        """The log of every process that was started."""
        return {f"log {process.log.name}": process.said() for process in self.run.running if process.log}

    def probed(self) -> dict[str, str]:
        """Metrics and probes of each stage, whether they are fine or not."""
        return {
            f"{what} of {stage}": _body(f"http://127.0.0.1:{port}/{what}")
            for stage, port in self.ports.items()
            for what in PROBES
        }

    def note_commands(self) -> None:
        """Keep the words of every living process of the stages and their children, as other users see them."""
        for process in self.run.running:
            with suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid)
                for one in (family, *family.children(recursive=True)):
                    self.commands.append(" ".join(one.cmdline()))

    def command(self, *words: str) -> str:
        """All that a command says in this process, whether it succeeds or not."""
        result = CliRunner().invoke(cli, [*words, "--config", str(self.run.config)])
        return f"{result.output}\n{result.exception!r}"

    def messages(self) -> dict[str, str]:
        """Every record of every topic: key, value and headers."""
        found = {}
        for topic in TOPICS:
            with self.bus.reader(topic) as reader:
                for message in reader.to_end():
                    parts = [message.key or b"", message.value or b"", *(value or b"" for _, value in message.headers)]
                    names = " ".join(name for name, _ in message.headers)
                    text = b" ".join(parts).decode("latin-1")
                    found[f"{topic.name} {message.partition} {message.offset}"] = f"record {text} {names}"
        return found

    def files(self) -> dict[str, str]:
        """Every file below the run's directory but the one with its settings."""
        paths = [path for path in self.run.directory.rglob("*") if path.is_file() and path != self.run.config]
        return {str(path): f"file {path.read_bytes().decode('latin-1')}" for path in paths}


@contextmanager
def a_planted_run(servers: Servers, name: str, directory: Path) -> Iterator[PlantedRun]:
    """A run whose stages are not started yet, with its topics, permissions and schemas."""
    directory.mkdir()
    write_tiny_model(directory / "model", seed=0, hidden=32, layers=1, heads=2, ffn=64)
    with (
        a_run(servers.secure.settings(ADMIN), name, directory) as run,
        a_loop(run, directory / "model", token_seconds=0.01) as loop,
    ):
        planted = PlantedRun(
            servers=servers, loop=loop, key=secrets.token_hex(16), ports=dict(zip(STAGES, free_ports(4), strict=True))
        )
        _configure(planted)
        for words in (("acls", "apply"), ("schemas", "register")):
            run.command(*words)
        yield planted


def _configure(planted: PlantedRun) -> None:
    run, servers = planted.run, planted.servers
    run.redis_url = servers.redis.url
    run.shared |= {"registry_url": servers.registry_url, "weight_store": f"s3://{BUCKET}/{run.name}/weights"}
    run.tables |= {
        "kafka.security": {f'"{name}"': value for name, value in servers.secure.security(ADMIN).items()},
        "storage": {"allow_http": True, "cache": run.directory / "cache", "outage_seconds": 1},
        "storage.options": {
            "endpoint": servers.s3.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        },
        f"environments.{paid_environment.NAME}": {"path": paid_environment.PATH, "options": {"key": planted.key}},
    }
    planted.loop.configure("trainer", checkpoints=f"s3://{BUCKET}/{run.name}/checkpoints", checkpoint_every=1)


def _body(url: str) -> str:
    request = urllib.request.Request(url)
    opener = urllib.request.build_opener(_AnyAnswer)
    with opener.open(request, timeout=10) as answer:
        return str(answer.read().decode())


class _AnyAnswer(urllib.request.HTTPErrorProcessor):
    """A probe that fails says why in its body."""

    def http_response(self, request: urllib.request.Request, response: object) -> object:
        """The answer, whatever its status."""
        return response
