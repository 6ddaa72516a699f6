"""More replies of hostile servers: how large, packed and slow; statuses; and those of routes that call no model."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Final

from tests.harness.raw_server import CHAT, RawReply, as_http, chat_answer
from tests.hostile.hostile_http import HostileReply, contradictions, documents, fields, framing

WEIGHT_ROUTES: Final = ("/pause", "/collective_rpc", "/update_weight_version", "/resume")
START_ROUTES: Final = ("/v1/models", "/version", "/health/readiness", "/health", "/server_info", *WEIGHT_ROUTES[2:])


def _body() -> bytes:
    return json.dumps(chat_answer()).encode()


def packed() -> Iterator[HostileReply]:
    """Compressed, which nobody asked for: some bytes of it may be gigabytes."""
    bomb = gzip.compress(b" " * 2**26)
    bodies = {
        "gzip": gzip.compress(_body()), "x-gzip": gzip.compress(_body()), "deflate": zlib.compress(_body()),
        "br": b"\x0b\x02\x80yes\x03", "zstd": b"\x28\xb5\x2f\xfd\x00", "compress": _body(), "gzip, gzip": bomb,
        "identity, gzip": bomb, "GZIP": bomb, "xyz": _body(), "a" * 5000: _body(),
    }  # fmt: skip
    for encoding, body in bodies.items():
        content = as_http(body, Content_Encoding=encoding)
        yield HostileReply(family="packed", name=encoding[:20], path=CHAT, reply=RawReply(content=content))
    bombs = {
        "of gzip": ("gzip", bomb),
        "of deflate": ("deflate", zlib.compress(b" " * 2**26)),
        "no gzip": ("gzip", b"x"),
    }
    for name, (encoding, body) in bombs.items():
        content = as_http(body, Content_Encoding=encoding)
        yield HostileReply(family="packed", name=f"bomb {name}", path=CHAT, reply=RawReply(content=content))


def sizes() -> Iterator[HostileReply]:
    """More than an answer to the request can need."""
    block, chunked = b"\x20" * 2**20, as_http(b"", Content_Length="", Transfer_Encoding="chunked")
    chunk = b"100000\r\n" + block + b"\r\n"
    text = put_text("a" * 2**20)
    endless = {
        "a length of 1 GB": (as_http(b"", Content_Length=str(2**30)), block, 1024),
        "chunks of 1 GB": (chunked, chunk, 1024),
        "neither, 1 GB": (as_http(b"", Content_Length="", Connection="close"), block, 1024),
        "chunks of a byte": (chunked, b"1\r\n \r\n" * 1000, 1000),
        "an error of 100 MB": (as_http(b"", "500 No", Content_Length=str(100 * 2**20)), block, 100),
        "a refusal of 100 MB": (as_http(b"", "400 No", Content_Length=str(100 * 2**20)), block, 100),
        "a text of 1 MB": (as_http(text), b"", 0),
        "a million choices": (as_http(b'{"choices":[' + b"{}," * 10**6 + b"{}]}"), b"", 0),
        "a million keys": (as_http(b"{" + b",".join(b'"%d":0' % number for number in range(10**5)) + b"}"), b"", 0),
    }
    for name, (content, repeated, times) in endless.items():
        reply = RawReply(content=content, repeated=repeated, times=times)
        yield HostileReply(family="sizes", name=name, path=CHAT, reply=reply)


def put_text(text: str) -> bytes:
    """A chat answer with this text."""
    return json.dumps(chat_answer()).replace('"yes"', json.dumps(text)).encode()


def slow() -> Iterator[HostileReply]:
    """What never ends."""
    good = as_http(_body())
    replies = {
        "silence": RawReply(hangs=True), "half a head": RawReply(content=good[:30], hangs=True),
        "half a body": RawReply(content=good[:-5], hangs=True),
        "a header every moment": RawReply(content=b"HTTP/1.1 200 OK\r\n", repeated=b"X: a\r\n", times=50, slow=True),
        "100 every moment": RawReply(repeated=b"HTTP/1.1 100 Continue\r\n\r\n", times=50, slow=True),
    }  # fmt: skip
    for name, reply in replies.items():
        yield HostileReply(family="slow", name=name, path=CHAT, reply=reply)


def statuses() -> Iterator[HostileReply]:
    """Every kind of status, with a good answer as its body."""
    numbers = [201, 202, 203, 205, 206, 226, 299, 300, 301, 302, 303, 305, 307, 308, 399, 400, 401, 402, 403, 404, 405]
    numbers += [406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 418, 421, 422, 425, 426, 428, 431, 444, 451, 499, 500]
    numbers += [501, 502, 503, 504, 505, 511, 520, 522, 524, 529, 530, 599, 600, 999]
    for number in numbers:
        content = as_http(_body(), f"{number} No", Location="http://127.0.0.1:9/elsewhere")
        yield HostileReply(family="statuses", name=str(number), path=CHAT, reply=RawReply(content=content))


def waits() -> Iterator[HostileReply]:
    """What `Retry-After` may ask for."""
    asked = ["86400", "9" * 400, "1e999", "Infinity", "-1", "nan", "0x10", "1_0", "soon", "\u0665", "", "1; 2", "1, 2"]
    asked += ["Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Thu, 01 Jan 1970 0:0"]
    asked += ["Mon, 99 Foo 2026 00:00:00 GMT", "1 Jan 0001 00:00:00 +2359", "31 Dec 9999 23:59:59 -2359", "(" * 500]
    asked += ["1 Jan 2030 00:00:00 +99999999999", "1 Jan -5 00:00:00", ",", "::::"]
    # What nobody can read is none: after 429 such a call goes on until its deadline.
    for status, values in ((429, asked[:8]), (503, asked)):
        for number, value in enumerate(values):
            content = as_http(b'{"error": "later"}', f"{status} Later", Retry_After=value)
            name = f"{status} {number} {value[:40]}"
            yield HostileReply(family="waits", name=name, path=CHAT, reply=RawReply(content=content, stays=True))


def errors() -> Iterator[HostileReply]:
    """Errors in every form."""
    bodies = [b"", b"null", b"[]", b'{"error": null}', b'{"error": [1]}', b'{"error": {"message": {"message": 1}}}']
    bodies += [
        b'{"detail": [{"msg": "a"}]}',
        b'{"message": "' + b"a" * 50_000 + b'"}',
        b"\xff" * 1000,
        b'{"error": 1e999}',
    ]
    bodies += [b'{"error": {"message": "\\u001b[2J\\u0000"}}', b'{"error": "context length"}', b"[" * 50_000]
    for status in (400, 500):
        for number, body in enumerate(bodies):
            content = as_http(body, f"{status} No")
            yield HostileReply(
                family="errors", name=f"{status} {number}", path=CHAT, reply=RawReply(content=content, stays=True)
            )


def headers() -> Iterator[HostileReply]:
    """Strange headers of a good answer."""
    odd = {
        "cookies": {"Set_Cookie": "a=b; Domain=.; Expires=never; Max-Age=99999999999999999999; Path=\\"},
        "another type": {"Content_Type": "text/html; charset=no-such"}, "a type that is none": {"Content_Type": "///"},
        "a link": {"Link": "<<<>>>; rel"}, "a date": {"Date": "99999"}, "a warning": {"Warning": "199 - \xff"},
        "a time to wait": {"Retry_After": "9" * 400}, "an upgrade": {"Alt_Svc": "h3=\":443\""},
        "a key": {"WWW_Authenticate": "Digest ,,,="}, "closing": {"Connection": "close"},
        "more than closing": {"Connection": "x, close"},
    }  # fmt: skip
    for name, lines in odd.items():
        reply = RawReply(content=as_http(_body(), **lines), stays=True)
        yield HostileReply(family="headers", name=name, path=CHAT, reply=reply, is_good=True)


_OF_ROUTES: Final = {
    "nothing": as_http(b""), "null": as_http(b"null"), "a list": as_http(b"[]"), "no fields": as_http(b"{}"),
    "HTML": as_http(b"<html>"), "500": as_http(b"{}", "500 No"), "404": as_http(b"", "404 No"), "a leap": b"",
    "302": as_http(b"", "302 Elsewhere", Location="http://127.0.0.1:9/"), "garbage": b"\x00" * 100,
    "cut": as_http(b"{}", Content_Length="50"), "gzip": as_http(gzip.compress(b"{}"), Content_Encoding="gzip"),
    "5 MB": as_http(b" " * 5 * 2**20), "false": as_http(b'{"success": false, "results": ["boom"]}'),
    "words": as_http(b'{"success": "yes", "results": "yes", "data": "yes", "version": {}, "vllm_config": []}'),
    "numbers": as_http(b'{"success": 1, "results": 7, "data": 7, "version": 1e999, "vllm_config": 7}'),
    "nulls": as_http(b'{"success": null, "results": null, "data": [null], "version": null, "vllm_config": null}'),
    "nothing in lists": as_http(b'{"success": [], "results": [], "data": [[]], "version": [], "vllm_config": {}}'),
    "odd parts": as_http(b'{"results": [{}, [1]], "data": [{"id": 7, "owned_by": [], "max_model_len": 1e999}]}'),
    "more parts": as_http(b'{"results": [None]}'), "half a pair": as_http(b'{"results": ["\\ud800"]}'),
}  # fmt: skip


def routes(paths: tuple[str, ...], family: str) -> Iterator[HostileReply]:
    """Replies of routes that call no model."""
    for path in paths:
        for name, content in _OF_ROUTES.items():
            yield HostileReply(family=family, name=name, path=path, reply=RawReply(content=content))


ANSWERS: Final[tuple[Callable[[], Iterator[HostileReply]], ...]] = (
    fields, contradictions, documents, framing, packed, sizes, slow, statuses, waits, errors, headers,
)  # fmt: skip


def corpus() -> Iterator[HostileReply]:
    """All kinds."""
    for family in ANSWERS:
        yield from family()
    yield from routes(WEIGHT_ROUTES, "weights")
    yield from routes(START_ROUTES, "start")
