"""Of lines that a library repeats few are written, with how many were held back; ours are all written."""

import logging

from rollstream.process.repeats import Repeats


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_line(name: str, text: str, *values: object, lineno: int = 1) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "file.py", lineno, text, values, None)


def written(filter_: Repeats, *lines: logging.LogRecord) -> list[str]:
    return [line.getMessage() for line in lines if filter_.filter(line)]


def test_a_line_that_is_repeated_is_written_every_ten_seconds_with_how_many_were_held_back() -> None:
    clock = Clock()
    repeats, said = Repeats("aiokafka", clock=clock), []
    for tenth in range(250):
        clock.now = tenth / 10
        said += written(repeats, a_line("aiokafka.consumer.fetcher", "no offsets from %s: %s", 1, tenth))
    assert said == [
        "no offsets from 1: 0",
        "no offsets from 1: 100 (99 more like it in 10 s)",
        "no offsets from 1: 200 (99 more like it in 10 s)",
    ]


def test_other_lines_and_other_loggers_are_written_in_full() -> None:
    repeats = Repeats("aiokafka", clock=Clock())
    lines = [a_line("rollstream.scorer", "dead letter")] * 3
    lines += [a_line("aiokafka.conn", "closed"), a_line("aiokafka.conn", "opened"), a_line("aiokafka.client", "closed")]
    assert len(written(repeats, *lines)) == 6
