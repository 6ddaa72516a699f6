"""How large an answer may be, and the reading of a body up to that. What a server sends beyond it is never held.

The values in it are bounded too, before they are made: 4 MiB of empty lists are 1.4 million objects, and no other call
goes on meanwhile. A thread would not help, since the parser holds the interpreter's lock.
"""

import re
from typing import Final

import aiohttp

from rollstream.schemas.errors import EngineError

_LARGEST_BYTES: Final = 2**26
# Names, ids, usage and the message around the answer.
_FRAME_BYTES: Final = 2**16
# A token is its text, up to three times where its logprob is given too, an id and a number. A run of 128 spaces, which
# is among the longest tokens of usual vocabularies, takes 460 bytes.
_TOKEN_BYTES: Final = 512
# vLLM repeats the ids of the prompt; each is a value.
_PROMPT_TOKEN_BYTES: Final = 64
# A token with its logprob is seven values, in vLLM's largest form.
_VALUE_BYTES: Final = 64
# Up to the next value that is not the first one in its list or object, or to the end; over texts and what is in them.
_TO_NEXT_VALUE: Final = re.compile(rb'(?:[^",\[{]++|"(?:[^"\\]++|\\.)*+"?)*+(?:[,\[{]|\Z)', re.DOTALL)
_CHUNK_BYTES: Final = 2**16


def most_bytes(num_prompt_tokens: int, max_tokens: int) -> int:
    """What the answer to a call needs at most."""
    needed = _FRAME_BYTES + _PROMPT_TOKEN_BYTES * num_prompt_tokens + _TOKEN_BYTES * max_tokens
    return min(needed, _LARGEST_BYTES)


def has_more_values(content: bytes, most_bytes: int) -> bool:
    """Whether JSON has more values than an answer of at most `most_bytes` can need."""
    most = most_bytes // _VALUE_BYTES
    # Most have fewer commas and brackets, those in texts included.
    if sum(map(content.count, (b",", b"[", b"{"))) <= most:
        return False
    # Of the matches two are the end: what lies before it, and nothing.
    return any(number > most + 1 for number, _ in enumerate(_TO_NEXT_VALUE.finditer(content)))


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body, at most `most` bytes. Raises `EngineError` if it is larger, or compressed, which nobody asked for."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise EngineError(f"the reply is compressed ({encoding[:50]!r}) although only identity was accepted")
    chunks, num_bytes = [], 0
    while chunk := await response.content.read(_CHUNK_BYTES):
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > most:
            raise EngineError(f"the reply has more than the {most} bytes that an answer to this request can need")
    return b"".join(chunks)
