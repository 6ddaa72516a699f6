"""Strangers and bad clients at a generator's endpoint and at ingest: bounded memory, and others are answered."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.harness.ingest_runs import KEYS as INGEST_KEYS
from tests.harness.ingest_runs import an_ingest_server
from tests.harness.raw_client import a_request, exchanged
from tests.harness.running import Run, a_run
from tests.harness.serving_runs import MODEL, a_serving_generator
from tests.hostile.attacks import ATTACKS, HOSTILE_JSON, MIB, Victim, attacked, measured

pytestmark = pytest.mark.usefixtures("forks")

KEY: Final = "key-of-an-attacker-0123456789"
OTHER_KEY: Final = "key-of-another-client-0123456789"
ROOM_BYTES: Final = 64 * MIB
NUM_OTHERS: Final = 20
GUARD: Final = {"header_seconds": 1.0, "body_seconds": 2.0, "stall_seconds": 2.0}
ASKED: Final = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "52910="}]}).encode()
SAID: Final = json.dumps({"response_id": "chatcmpl-1", "metric": "thumbs", "number": 1}).encode()


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """A server, and what another client asks of it."""

    victim: Victim
    asked: bytes
    status: int

    def answer_another(self) -> None:
        """The other client calls, and is answered."""
        answer = exchanged(self.victim.port, a_request(self.victim.path, self.asked, key=OTHER_KEY))
        assert answer.status == self.status, answer


@pytest.fixture(scope="module")
def a_run_of_servers(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("attacked")
    with a_run(kafka, f"attacked-{uuid4().hex[:8]}", directory) as run:
        yield run


@pytest.fixture(scope="module")
def generator(a_run_of_servers: Run) -> Attacked:
    keys = {
        "attacker": {"key": KEY, "tenant": "attackers"},
        "other": {"key": OTHER_KEY, "tenant": "others"},
    }
    made = a_serving_generator(a_run_of_servers, token_seconds=0.01, guard=GUARD, keys=keys)
    a_run_of_servers.publish_weights(3)
    process = made.start()
    made.until_ready()
    victim = Victim(port=made.port, path="/v1/chat/completions", key=KEY, pid=process.pid)
    return Attacked(victim=victim, asked=ASKED, status=200)


@pytest.fixture(scope="module")
def ingest(a_run_of_servers: Run) -> Attacked:
    made = an_ingest_server(a_run_of_servers, guard=GUARD)
    a_run_of_servers.tables["ingest.keys.attacker"] = {"key": KEY, "tenant": "attackers"}
    a_run_of_servers.tables["ingest.keys.other"] = {"key": OTHER_KEY, "tenant": "others"}
    process = made.start()
    made.wait_until_ready()
    return Attacked(
        victim=Victim(port=made.port, path="/v1/feedback", key=KEY, pid=process.pid), asked=SAID, status=202
    )


@pytest.fixture(params=["generator", "ingest"])
def server(request: pytest.FixtureRequest) -> Attacked:
    """Each of both."""
    found: Attacked = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_others_are_answered_under_each_attack_and_memory_is_bounded(
    server: Attacked, attack: Callable[[Victim], None]
) -> None:
    before = server.victim.rss_bytes
    with attacked(attack, server.victim):
        for _ in range(NUM_OTHERS):
            server.answer_another()
        assert server.victim.rss_bytes - before < ROOM_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_how_long_others_wait_under_each_attack(
    server: Attacked, attack: Callable[[Victim], None], request: pytest.FixtureRequest
) -> None:
    found = measured(attack, server.victim, server.answer_another)
    print(f"{request.node.name}: {found}")  # noqa: T201 (the figures of a campaign)


@pytest.mark.parametrize("body", HOSTILE_JSON)
def test_hostile_json_is_a_400_of_each_server(server: Attacked, body: bytes) -> None:
    answer = exchanged(server.victim.port, server.victim.request(body))
    assert (answer.status, answer.json["error"]["code"]) == (400, "json")


@pytest.mark.parametrize(
    "value",
    [
        None, 1, "text", [], {}, {"messages": 1}, {"messages": [{}]}, {"model": MODEL, "messages": [{"role": 1}]},
        {"response_id": {}, "metric": [], "number": "1"}, {"session": "s" * 100_000, "metric": "m", "number": 1},
        {"response_id": "r", "metric": "m", "number": 10**400}, [[[]]], [None] * 10_000,
    ],
)  # fmt: skip
def test_json_that_means_nothing_here_is_a_clear_error(server: Attacked, value: Any) -> None:
    answer = exchanged(server.victim.port, server.victim.request(json.dumps(value).encode()))
    assert answer.status in (400, 413, 422), answer
    assert answer.json["error"]["message"]
    assert len(answer.body) < 2000


def test_a_key_of_one_server_is_none_of_the_other(generator: Attacked, ingest: Attacked) -> None:
    of_ingest_alone = INGEST_KEYS["web"]["key"]
    assert exchanged(ingest.victim.port, a_request(ingest.victim.path, SAID, key=of_ingest_alone)).status == 202
    answer = exchanged(generator.victim.port, a_request(generator.victim.path, ASKED, key=of_ingest_alone))
    assert (answer.status, answer.json["error"]["code"]) == (401, "key")
