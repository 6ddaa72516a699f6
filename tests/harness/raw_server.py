"""A server that answers with the bytes it is told, whatever they are; else as vLLM's server with the tiny tokenizer."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness.threads import loop_in_a_thread

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
_CHUNK: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReply:
    """What is sent: `content`, then `repeated` `times` times, slowly if it is `slow`.

    Then the server leaves, unless it `stays` for the next request, `hangs`, or `resets` the connection.
    """

    content: bytes = b""
    repeated: bytes = b""
    times: int = 0
    slow: bool = False
    stays: bool = False
    hangs: bool = False
    resets: bool = False


def as_http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A reply with this body. Underscores in the names of headers stand for hyphens."""
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines.update({name.replace("_", "-"): value for name, value in headers.items()})
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def token_answer(num_prompt_tokens: int) -> dict[str, Any]:
    """A good answer in tokens, with spans of version 0."""
    choice = {
        "index": 0,
        "text": "111",
        "finish_reason": "stop",
        "token_ids": [4, 4, 4, 1],
        "logprobs": {"token_logprobs": [-0.25, -0.5, -0.75, -1.0]},
        "weight_versions": [{"version": "0", "start": 0, "end": 4}],
    }
    return {"choices": [choice], "usage": {"prompt_tokens": num_prompt_tokens, "completion_tokens": 4}}


def chat_answer() -> dict[str, Any]:
    """A good answer in text."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


@dataclass(slots=True)
class RawServer:
    """`planned`: by path, the reply to every request there; others are answered well. `num_asked` counts requests."""

    planned: dict[str, RawReply] = field(default_factory=dict)
    port: int = 0
    num_asked: int = 0
    label: str = "default"

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, up to the first reply that is planned."""
        with suppress(OSError, asyncio.IncompleteReadError), closed(writer):
            while True:
                path, body = await _request(reader)
                self.num_asked += 1
                planned = self.planned.get(path)
                if planned is not None:
                    await _send(planned, reader, writer)
                    if planned.stays:
                        continue
                    break
                writer.write(as_http(json.dumps(self._good(path, body)).encode()))
                await writer.drain()

    def _good(self, path: str, body: Any) -> Any:
        if path == "/update_weight_version":
            self.label = body["new_version"]
            return {"success": True}
        model_config = {"model_config": {"logprobs_mode": "processed_logprobs"}, "device_config": {"device": "cuda"}}
        answers = {
            CHAT: chat_answer(),
            "/v1/models": {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 4096}]},
            "/version": {"version": "0.32.0"},
            "/server_info": {"vllm_config": model_config},
            "/weight_info": {"weight_version": self.label},
            "/collective_rpc": {"results": [None]},
        }
        if path == COMPLETIONS:
            answer = token_answer(len(body["prompt"]))
            answer["choices"][0]["weight_versions"][0]["version"] = self.label
            return answer
        return answers.get(path, {})


@contextmanager
def closed(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close the connection at the end of the block; at once, if the block is cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    path = head.split(" ")[1].partition("?")[0]
    lengths = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0])) if lengths else b""
    return path, json.loads(body) if body else None


async def _send(reply: RawReply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(reply.content)
    await writer.drain()
    for _ in range(reply.times):
        writer.write(reply.repeated)
        await writer.drain()
        if reply.slow:
            await asyncio.sleep(0.2)
    if reply.hangs:
        # Until the client leaves.
        while await reader.read(_CHUNK):
            pass
    if reply.resets:
        writer.transport.abort()


@contextmanager
def raw_server() -> Iterator[RawServer]:
    """The server, in a thread, until the block ends."""
    server = RawServer()

    async def end() -> None:
        listening.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # What was closed is closed by the loop, a moment later.
        await asyncio.sleep(0.05)

    with loop_in_a_thread() as run:
        listening = run(asyncio.start_server(server.serve, "127.0.0.1", 0))
        server.port = listening.sockets[0].getsockname()[1]
        try:
            yield server
        finally:
            run(end())
