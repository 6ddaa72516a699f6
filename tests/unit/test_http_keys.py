"""Who may call an HTTP server, and how often."""

import re

import pytest
from pydantic import SecretStr

from rollstream.http.keys import LOCAL, OPEN, ClientKey, Keys
from rollstream.http.rate import Rate
from rollstream.schemas.errors import ConfigurationError

LONG = "k" * 24
BEARER = b"Bearer " + LONG.encode()


def a_client(key: str = LONG, tenant: str = "shop") -> ClientKey:
    return ClientKey(key=SecretStr(key), tenant=tenant)


def refusal_of(host: str, **clients: ClientKey) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Keys(clients, host)
    return str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_without_keys_this_machine_alone_is_served(host: str) -> None:
    assert Keys({}, host).holder([]) == (LOCAL, OPEN)
    assert not OPEN.may_train


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org", "localhost.example.org"])
def test_beyond_this_machine_there_must_be_keys_of_24_characters(host: str) -> None:
    assert "there are no keys" in refusal_of(host)
    assert "keys.shop.key has 23 characters, at least 24" in refusal_of(host, shop=a_client("k" * 23))
    assert Keys({"shop": a_client()}, host).holder([]) is None


def test_two_clients_with_one_key_are_refused_by_name_and_without_the_key() -> None:
    said = refusal_of("127.0.0.1", one=a_client(), other=a_client())
    assert "keys.other.key is also that of keys.one" in said
    assert LONG not in said


@pytest.mark.parametrize("key", ["", "with a space", "line\nbreak", "kéy"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    assert re.match(r"keys.shop.key is empty, or has", refusal_of("127.0.0.1", shop=a_client(key)))


@pytest.mark.parametrize("value", [BEARER, BEARER.replace(b"B", b"b", 1)])
def test_a_bearer_is_known_by_its_key(value: bytes) -> None:
    client = a_client()
    assert Keys({"shop": client, "other": a_client("o" * 24)}, "0.0.0.0").holder([(b"authorization", value)]) == (
        "shop",
        client,
    )


def test_a_key_is_known_in_both_headers_also_beside_a_wrong_one() -> None:
    keys = Keys({"shop": a_client()}, "0.0.0.0")
    for headers in (
        [(b"x-api-key", LONG.encode())],
        [(b"x-api-key", LONG.encode()), (b"authorization", b"Bearer none")],
        [(b"x-api-key", LONG.encode()), (b"authorization", BEARER)],
    ):
        found = keys.holder(headers)
        assert found is not None
        assert found[0] == "shop"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-api-key", b"")],
        [(b"x-api-key", LONG.encode()[:-1])],
        [(b"x-api-key", BEARER)],
        [(b"authorization", LONG.encode())],
        [(b"authorization", b"Basic " + LONG.encode())],
        [(b"cookie", LONG.encode())],
        # Two keys: whose call is it?
        [(b"x-api-key", LONG.encode()), (b"authorization", b"Bearer " + b"o" * 24)],
        [(b"x-api-key", LONG.encode())] * 2,
        [(b"x-api-key", b"\xff" * 24)],
    ],
)
def test_a_request_without_a_known_key_is_nobodys(headers: list[tuple[bytes, bytes]]) -> None:
    assert Keys({"shop": a_client(), "other": a_client("o" * 24)}, "0.0.0.0").holder(headers) is None


def test_a_key_may_make_as_many_calls_at_once_as_in_a_minute_and_then_one_by_one() -> None:
    now = 0.0
    rate = Rate(30, clock=lambda: now)
    assert [rate.wait_seconds("shop") for _ in range(31)] == [0] * 30 + [2]
    assert rate.wait_seconds("other") == 0
    now = 2.0
    assert [rate.wait_seconds("shop"), rate.wait_seconds("shop")] == [0, 2]
    now = 10_000.0
    assert [rate.wait_seconds("shop") for _ in range(31)] == [0] * 30 + [2]


def test_without_a_bound_any_number_of_calls_may_come() -> None:
    rate = Rate(None)
    assert {rate.wait_seconds("shop") for _ in range(1000)} == {0}
