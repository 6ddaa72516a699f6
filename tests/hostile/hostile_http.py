"""Replies that a stranger's HTTP server may give, in families: fields, contradictions, JSON, framing, sizes, routes.

Each is sent over a real socket to the engine `openai_http`, and ends one call of it, never the engine.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.harness.raw_server import CHAT, COMPLETIONS, RawReply, as_http, chat_answer, token_answer

NUM_PROMPT_TOKENS: Final = 13
"""Of the request that all answers are to."""
_Path = tuple[str | int, ...]
_CHOICE: Final = ("choices", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileReply:
    """One reply to requests at `path`. `is_good`: it looks strange, and is an answer all the same."""

    family: str
    name: str
    path: str
    reply: RawReply
    is_good: bool = False

    def __str__(self) -> str:
        return f"{self.family} at {self.path}: {self.name}"


class Raw(str):
    """JSON as it is written, which may be none."""

    __slots__ = ()


_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 1.5, 2**70, Raw("1e999"), Raw("-Infinity"), Raw("NaN"), "", "Infinity", Raw('"\\ud800"'), [], {},
    [[]], {"a": [None]},
)  # fmt: skip
_OF_TOKENS: Final[tuple[_Path, ...]] = (
    ("choices",),
    _CHOICE,
    *((*_CHOICE, name) for name in ("text", "finish_reason", "token_ids", "logprobs", "prompt_token_ids", "error")),
    (*_CHOICE, "token_ids", 1),
    (*_CHOICE, "logprobs", "token_logprobs"),
    (*_CHOICE, "logprobs", "token_logprobs", 2),
    (*_CHOICE, "weight_versions"),
    (*_CHOICE, "weight_versions", 0),
    *((*_CHOICE, "weight_versions", 0, name) for name in ("version", "start", "end")),
    ("usage",),
    ("usage", "prompt_tokens"),
    ("usage", "completion_tokens"),
    ("error",),
)
_CALL: Final = (*_CHOICE, "message", "tool_calls", 0)
_OF_CHAT: Final[tuple[_Path, ...]] = (
    ("choices",),
    (*_CHOICE, "message"),
    (*_CHOICE, "message", "content"),
    (*_CHOICE, "message", "tool_calls"),
    _CALL,
    (*_CALL, "function"),
    (*_CALL, "function", "name"),
    (*_CALL, "function", "arguments"),
    (*_CALL, "id"),
    (*_CHOICE, "finish_reason"),
    ("usage", "completion_tokens"),
)
# What says nothing: no field at all would be the same.
_NOTHING: Final = (None, "", [], {})
_MAY_BE_NOTHING: Final = {
    (*_CHOICE, "error"): _NOTHING,
    ("error",): _NOTHING,
    (*_CHOICE, "weight_versions"): _NOTHING,
    (*_CHOICE, "prompt_token_ids"): (None,),
    (*_CHOICE, "logprobs", "token_logprobs", 2): (-1,),
    ("usage",): (None, {}, {"a": [None]}),
    ("usage", "prompt_tokens"): (None,),
    ("usage", "completion_tokens"): (None,),
    (*_CHOICE, "message", "content"): (None, "", "Infinity"),
    (*_CHOICE, "message", "tool_calls"): (None, []),
    (*_CALL, "id"): (None, "", "Infinity", [], {}),
    (*_CALL, "function", "name"): ("", "Infinity"),
    (*_CALL, "function", "arguments"): (None, "", "Infinity", [], {}),
}


def as_json(value: Any) -> bytes:
    """JSON in which each `Raw` stands as it is."""
    found: dict[str, str] = {}

    def hidden(one: Any) -> Any:
        if isinstance(one, Raw):
            found[f"raw-{len(found)}"] = str(one)
            return f"raw-{len(found) - 1}"
        if isinstance(one, dict):
            return {name: hidden(each) for name, each in one.items()}
        return [hidden(each) for each in one] if isinstance(one, list) else one

    text = json.dumps(hidden(value))
    for name, raw in found.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode()


def put(answer: dict[str, Any], path: _Path, value: Any) -> dict[str, Any]:
    """The answer with another value there."""
    changed = copy.deepcopy(answer)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def _chat_with_a_call() -> dict[str, Any]:
    called = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    return put(put(chat_answer(), (*_CHOICE, "message", "tool_calls"), [called]), (*_CHOICE, "finish_reason"), "stop")


def fields() -> Iterator[HostileReply]:
    """Any value in any field that is read."""
    for path, answer, places in (
        (COMPLETIONS, token_answer(NUM_PROMPT_TOKENS), _OF_TOKENS),
        (CHAT, _chat_with_a_call(), _OF_CHAT),
    ):
        for place in places:
            for value in _VALUES:
                allowed = _MAY_BE_NOTHING.get(place, ())
                is_good = not isinstance(value, Raw) and any(
                    type(one) is type(value) and one == value for one in allowed
                )
                content = as_http(as_json(put(answer, place, value)))
                yield HostileReply(
                    family="fields", name=f"{'.'.join(map(str, place))} = {value!r}", path=path,
                    reply=RawReply(content=content, stays=True), is_good=is_good,
                )  # fmt: skip


def contradictions() -> Iterator[HostileReply]:
    """Each field may be what it is; together they can't."""
    spans = (*_CHOICE, "weight_versions")
    changes: tuple[tuple[_Path, Any], ...] = (
        ((*_CHOICE, "token_ids"), [4] * 5000),
        ((*_CHOICE, "token_ids"), [4, 4, 4]),
        ((*_CHOICE, "token_ids"), [2**31 - 1, 4, 4, 1]),
        ((*_CHOICE, "text"), "999"),
        ((*_CHOICE, "text"), "1111"),
        ((*_CHOICE, "finish_reason"), "length"),
        ((*_CHOICE, "finish_reason"), "abort"),
        ((*_CHOICE, "prompt_token_ids"), [4] * NUM_PROMPT_TOKENS),
        ((*_CHOICE, "logprobs", "token_logprobs"), [-0.5] * 5),
        ((*_CHOICE, "logprobs", "token_logprobs"), [0.5] * 4),
        ((*_CHOICE, "logprobs", "token_logprobs"), [-9999.0] * 4),
        (("usage", "completion_tokens"), 5000),
        (("usage", "prompt_tokens"), 0),
        (("error",), {"message": "out of memory"}),
        ((*_CHOICE, "error"), "overloaded"),
        (("choices",), token_answer(1)["choices"] * 2),
        (spans, [{"version": "0", "start": 0, "end": 3}]),
        (spans, [{"version": "0", "start": 0, "end": 5}]),
        (spans, [{"version": "0", "start": 0, "end": 2}, {"version": "0", "start": 1, "end": 4}]),
        (spans, [{"version": "0", "start": 0, "end": -1}, {"version": "0", "start": -1, "end": 4}]),
        (spans, [{"version": "7", "start": 0, "end": 4}]),
        (spans, [{"version": "-1", "start": 0, "end": 4}]),
        (spans, [{"version": "\u0665", "start": 0, "end": 4}]),
        (spans, [{"version": "9" * 400, "start": 0, "end": 4}]),
        (spans, [{"version": "default", "start": 0, "end": 4}]),
    )
    for number, (place, value) in enumerate(changes):
        content = as_http(as_json(put(token_answer(NUM_PROMPT_TOKENS), place, value)))
        name = f"{number} {'.'.join(map(str, place))} = {str(value)[:60]}"
        yield HostileReply(
            family="contradictions", name=name, path=COMPLETIONS, reply=RawReply(content=content, stays=True)
        )


def documents() -> Iterator[HostileReply]:
    """Bodies that are no JSON, or hardly."""
    good = json.dumps(chat_answer())
    bodies = {
        "nothing": b"", "spaces": b" " * 100, "NUL": b"\x00", "null": b"null", "a number": b"7", "a text": b'"yes"',
        "a list": b"[]", "HTML": b"<html>gateway</html>", "byte order mark": b"\xef\xbb\xbf" + good.encode(),
        "UTF-16": good.encode("utf-16"), "UTF-32": good.encode("utf-32"), "Latin-1": b'{"choices": "\xe9"}',
        "cut": good.encode()[:-1], "two": good.encode() * 2, "trailing comma": good[:-1].encode() + b",}",
        "comment": b"/* yes */" + good.encode(), "single quotes": good.replace('"', "'").encode(),
        "deep list": b"[" * 50_000, "deep object": b'{"a":' * 12_000, "long number": b"9" * 50_000,
        "long exponent": b"1e" + b"9" * 5000, "half a pair": b'{"choices": "\\ud83d"}',
        "bad escape": b'{"choices": "\\x"}',
        "control character": b'{"choices": "\n"}', "unquoted": b"{choices: 1}",
        "events": b"data: " + good.encode() + b"\n\n",
        "NDJSON": good.encode() + b"\n" + good.encode(), "NaN": b"NaN", "pickle": b"\x80\x04K\x01.",
        "overlong UTF-8": b'{"choices": "\xc0\xaf"}', "surrogate in UTF-8": b'{"choices": "\xed\xa0\x80"}',
    }  # fmt: skip
    for name, body in bodies.items():
        yield HostileReply(family="documents", name=name, path=CHAT, reply=RawReply(content=as_http(body), stays=True))


def framing() -> Iterator[HostileReply]:
    """What is no HTTP, or contradicts itself in it."""
    body = json.dumps(chat_answer()).encode()
    good = as_http(body)
    chunked = as_http(b"", Content_Length="", Transfer_Encoding="chunked")
    raw = {
        "nothing": b"", "a line": b"hello\r\n\r\n", "no version": b"200 OK\r\n\r\n" + body, "HTTP/0.9": body,
        "HTTP/9.9": good.replace(b"HTTP/1.1", b"HTTP/9.9"), "HTTP/1": good.replace(b"HTTP/1.1", b"HTTP/1"),
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "TLS": b"\x15\x03\x01\x00\x02\x02\x46", "SSH": b"SSH-2.0-x\r\n",
        "status 20": good.replace(b"200 OK", b"20 OK"), "status 99999": good.replace(b"200 OK", b"99999 OK"),
        "status -1": good.replace(b"200 OK", b"-1 OK"), "status abc": good.replace(b"200 OK", b"abc OK"),
        "no status": good.replace(b" 200 OK", b""), "status in other digits": good.replace(b"200", "٢٠٠".encode()),
        "header without a colon": good.replace(b"Content-Type:", b"Content-Type"),
        "header with NUL": good.replace(b"json", b"js\x00on"), "header of 1 MB": as_http(body, X_A="a" * 2**20),
        "100000 headers": b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 100_000 + b"\r\n",
        "header name of spaces": good.replace(b"Content-Type", b"   "),
        "endless reason": b"HTTP/1.1 200 " + b"O" * 2**20,
        "bare CR": good.replace(b"\r\n", b"\r"), "length -5": as_http(body, Content_Length="-5"),
        "length abc": as_http(body, Content_Length="abc"), "length 1e3": as_http(body, Content_Length="1e3"),
        "length of 30 digits": as_http(body, Content_Length="9" * 30), "length +5": as_http(body, Content_Length="+5"),
        "two lengths": as_http(body, X_A=f"a\r\nContent-Length: {len(body) + 1}"),
        "length too long": as_http(body, Content_Length=str(len(body) + 5)),
        "length too short": as_http(body, Content_Length="5"), "length 0": as_http(body, Content_Length="0"),
        "length and chunks": as_http(body, Transfer_Encoding="chunked"), "chunk xyz": chunked + b"xyz\r\n" + body,
        "chunk -1": chunked + b"-1\r\n" + body, "chunk of 40 digits": chunked + b"f" * 40 + b"\r\n" + body,
        "chunk too long": chunked + b"fffff\r\n" + body,
        "chunk too short": chunked + b"5\r\n" + body + b"\r\n0\r\n\r\n",
        "chunk without an end": chunked + b"5\r\nhello\r\n", "chunk without a length": chunked + b"\r\n" + body,
        "endless chunk extension": chunked + b"5;" + b"a" * 2**20,
        "coding gzip": as_http(body, Transfer_Encoding="gzip"),
        "coding xyz": as_http(body, Transfer_Encoding="xyz"), "101": as_http(b"", "101 Switching", Upgrade="websocket"),
        "1000 times 100": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, "204 with a body": as_http(body, "204 Nothing"),
        "304 with a body": as_http(body, "304 Same"), "a head alone": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        "half a head": b"HTTP/1.1 200 OK\r\nContent-Le", "random": bytes(range(256)) * 40,
    }  # fmt: skip
    for name, content in raw.items():
        yield HostileReply(family="framing", name=name, path=CHAT, reply=RawReply(content=content))
    for name, content in (("at once", b""), ("in the head", good[:30]), ("in the body", good[:-5])):
        reply = RawReply(content=content, resets=True)
        yield HostileReply(family="framing", name=f"reset {name}", path=CHAT, reply=reply)
