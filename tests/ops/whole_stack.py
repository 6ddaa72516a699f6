"""The real stack on one machine: what production has but a container engine.

Three brokers demand TLS, a client's certificate and a password; each stage has a principal of its own. Redis has a
password, weights and checkpoints lie on an S3 server. The generator runs vLLM. Prometheus scrapes with the settings and
rules of docker-compose.yml.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pydantic import SecretStr

from rollstream.bus.acl_rules import ROLES
from rollstream.local.ports import free_ports
from rollstream.local.redis import RedisServer
from tests.bench import chain_model, tasks
from tests.harness.loops import MAX_POLICY_LAG, SHARE, STAGES, Loop, a_loop
from tests.harness.processes import StartedProcess
from tests.harness.prometheus_server import EVERY_SECONDS, a_prometheus
from tests.harness.running import Run, a_run
from tests.harness.s3_fixtures import BUCKET, KEY, SECRET, S3Server, an_s3_server
from tests.harness.secure_kafka import ADMIN, SecureKafka, a_secure_cluster, key_password_of, password_of
from tests.observability.answers import Prometheus, Span

REDIS_PASSWORD: Final = "the-password-of-redis-93e1"
ENVIRONMENT: Final = "coin"
_PHASES: Final = ("abc", "def", "ghi", "jkl")
_MEDIAN_TOKENS: Final = 4
MAX_MODEL_LEN: Final = 32
_START_SECONDS: Final = 240.0
"""vLLM computes for half a minute before its first token, beside other processes for minutes."""


@dataclass(frozen=True, kw_only=True)
class WholeStack:
    """All of it. `began`: since when Prometheus looks, Unix seconds.

    `ports`: of the stages' probes and metrics. `variables`: of an administrator's process.
    """

    loop: Loop
    prometheus: Prometheus
    began: float
    ports: Mapping[str, int]
    variables: Mapping[str, str]

    @property
    def span(self) -> Span:
        """The time since Prometheus looks."""
        return Span(start=self.began, end=time.time(), step=EVERY_SECONDS, scrape=EVERY_SECONDS)

    def until(self, expr: str) -> None:
        """Wait until an expression has had an answer at any time."""
        self.loop.until(
            lambda: self.prometheus.over_time(expr, self.span), f"Prometheus to answer {expr}", _START_SECONDS
        )

    def secrets(self) -> set[str]:
        """All that must be in no log."""
        users = (ADMIN, *(principal_of(stage) for stage in STAGES))
        return {REDIS_PASSWORD, SECRET, *map(password_of, users), *map(key_password_of, users)}


def principal_of(stage: str) -> str:
    """The user as which a stage comes to the brokers."""
    return f"rollstream-{stage}"


@contextmanager
def a_whole_stack(directory: Path, prometheus: str, name: str) -> Iterator[WholeStack]:
    """The stack of the run called `name`, whose stages were just started; `prometheus` is that program."""
    model = directory / "model"
    with ExitStack() as parts:
        # In a process of its own: only it imports torch.
        other = parts.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))
        made = other.submit(_write_model, model)
        secure = parts.enter_context(a_secure_cluster(directory / "kafka", 3))
        secure.add_users(*map(principal_of, ROLES))
        (directory / "s3").mkdir()
        server = parts.enter_context(an_s3_server(directory / "s3"))
        redis = _started_redis(directory / "redis", parts)
        environment = {
            "AWS_ACCESS_KEY_ID": KEY, "ROLLSTREAM_STORAGE__OPTIONS__SECRET_ACCESS_KEY": SECRET,
            "ROLLSTREAM_REDIS_URL": redis.url, "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        commands = parts.enter_context(pytest.MonkeyPatch.context())
        administrators = {**environment, **secure.variable(ADMIN)}
        for variable, value in administrators.items():
            commands.setenv(variable, value)  # the commands of this process are an administrator's
        made.result()
        other.shutdown()
        run = parts.enter_context(a_run(secure.settings(ADMIN), name, directory))
        run.command("acls", "apply")
        loop = parts.enter_context(a_loop(run, model))
        ports = dict(zip(STAGES, free_ports(len(STAGES)), strict=True))
        _configure(loop, server, ports)
        began = time.time()
        address = parts.enter_context(a_prometheus(prometheus, directory / "prometheus", name, ports))
        for stage in ("generator", "scorer", "producer", "trainer"):
            loop.keep_alive(stage, _starter(run, secure, stage, environment))
        yield WholeStack(loop=loop, prometheus=Prometheus(address), began=began, ports=ports, variables=administrators)


def _write_model(path: Path) -> None:
    chain = chain_model.spread_lengths(_PHASES, _MEDIAN_TOKENS)
    chain_model.write_chain_model(path, chain, max_length=MAX_MODEL_LEN)


def _started_redis(directory: Path, parts: ExitStack) -> RedisServer:
    redis = RedisServer(directory, free_ports(1)[0], password=SecretStr(REDIS_PASSWORD))
    parts.callback(redis.kill)
    redis.start()
    return redis


def _starter(run: Run, secure: SecureKafka, stage: str, environment: dict[str, str]) -> Callable[[], StartedProcess]:
    """A function that shows none of the secrets, as a failing test would show a call's arguments.

    Processes of their own: one that is forked would export the metrics of every stage.
    """
    return lambda: run.start_as_people_do(stage, **environment, **secure.variable(principal_of(stage)))


def _configure(loop: Loop, server: S3Server, ports: dict[str, int]) -> None:
    """What differs from other tests' loops: the store, and the real engine with a task of which it knows a half."""
    run = loop.run
    run.shared["weight_store"] = f"s3://{BUCKET}/{run.name}/weights"
    run.tables |= {
        "storage": {"allow_http": True, "cache": run.directory / "cache"},
        "storage.options": {"endpoint": server.endpoint, "region": "us-east-1"},
        f"environments.{ENVIRONMENT}": {
            "path": tasks.COIN_PATH, "options": {"starts": "".join(phases[0] for phases in _PHASES)}
        },
        "generator.engine": {
            "kind": "vllm", "model_path": run.directory / "model", "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 64,
            "kv_cache_bytes": 2**26, "enforce_eager": True, "vllm_metrics": True,
        },
    }  # fmt: skip
    # More steps than the open groups can make: whether one is too old would depend on how busy the machine is.
    run.shared["max_policy_lag"] = 2 * MAX_POLICY_LAG
    loop.configure("producer", environment=ENVIRONMENT, share=SHARE)
    # It learns hardly anything: a policy that got longer and longer answers would make no more steps.
    learning = {"learning_rate": 1e-6, "threads": 1}
    checkpoints = f"s3://{BUCKET}/{run.name}/checkpoints"
    # However many steps it makes until it is rolled back: that needs one that is older than the newest two.
    loop.configure("trainer", checkpoints=checkpoints, keep_checkpoints=100, learning=learning)
    for stage, port in ports.items():
        loop.configure(stage, health_port=port)
