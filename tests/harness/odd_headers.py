"""Puts a record on a topic with a header whose name is not UTF-8, as clients in other languages can.

Our own clients can't. aiokafka's parser in Python can, told to encode the name in its own way; so this is a process of
its own, without aiokafka's extensions.
"""

import asyncio
import os
import subprocess
import sys

from aiokafka import AIOKafkaProducer

from tests.harness.processes import ROOT


class _OddName(str):
    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"\xff\xfename"


def put_with_odd_header(bootstrap_servers: str, topic: str, value: bytes) -> None:
    """Put `value` on `topic`; returns when the broker has confirmed it."""
    command = [sys.executable, "-m", "tests.harness.odd_headers", bootstrap_servers, topic]
    subprocess.run(command, cwd=ROOT, input=value, env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"}, check=True)


async def _put(bootstrap_servers: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        await producer.send_and_wait(topic, sys.stdin.buffer.read(), headers=[(_OddName("odd"), b"value")])


if __name__ == "__main__":
    asyncio.run(_put(*sys.argv[1:]))
