"""Commands on a run whose topics a test fills by hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from rollstream.bus.message import Delivery, OutRecord
from rollstream.bus.publisher import Publisher
from rollstream.cli.main import cli
from rollstream.process.settings.base import KafkaSettings
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.record import Record
from rollstream.schemas.topics import Topic


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """One run on the shared broker: puts records on its topics, runs commands against it."""

    name: str
    kafka: KafkaSettings
    config: Path
    publisher: Publisher

    def put(self, topic: Topic[Any], record: Record, *, key: str) -> Delivery:
        return self.put_bytes(topic, AvroCodec(topic).encode(record), key=key)

    def put_bytes(self, topic: Topic[Any], value: bytes | None, *, key: str) -> Delivery:
        record = OutRecord(topic=topic.of(self.name), key=key.encode(), value=value)
        return self.publisher.publish_soon(record).result(30)

    def command(self, *words: str) -> str:
        """Standard output of a command that must succeed."""
        result = CliRunner().invoke(cli, [*words, "--config", str(self.config)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refusal(self, *words: str) -> RollstreamError:
        """The error of a command that must fail with one of ours."""
        result = CliRunner().invoke(cli, [*words, "--config", str(self.config)])
        assert isinstance(result.exception, RollstreamError), result.output
        return result.exception
