"""What is logged: not the same thing many times, and nothing that steers a terminal."""

import logging

from rollstream.process.logs import OneOfAKind


def a_line(message: str, *, name: str = "rollstream.kafka_client", at: float = 0.0) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, "file", 1, message, (), None)
    record.created = at
    return record


def test_a_kafka_client_without_a_broker_logs_a_line_of_a_kind_once_in_30_s() -> None:
    once = OneOfAKind()
    said = [
        line.getMessage()
        for number in range(1000)
        for line in (a_line(f"Connect to 127.0.0.1:9092 failed (after {number} ms)", at=number * 0.05),)
        if once.filter(line)
    ]
    assert said == [
        "Connect to 127.0.0.1:9092 failed (after 0 ms)",
        "Connect to 127.0.0.1:9092 failed (after 600 ms) (599 more like it since the last)",
    ]
    assert all(once.filter(a_line("the same", name="rollstream.stage.loop")) for _ in range(3))
    assert [once.filter(a_line("other", name="aiokafka.conn")) for _ in range(2)] == [True, False]
