"""Metrics of a training run as JSON lines: nothing is lost by a kill, and nothing ends silently."""

import json
import math
import signal
import subprocess
import sys

import numpy as np
import pytest

from rollstream.schemas.errors import ConfigurationError, MachineError
from rollstream.training.metrics import JSONLLogger
from tests.harness.full_disk import room_for
from tests.harness.late import Late

torch = Late("torch")
WRITES_FOR_EVER = """
import itertools, sys
from rollstream.training.metrics import JSONLLogger
logger = JSONLLogger(sys.argv[1])
for step in itertools.count():
    logger.log({"loss": 1.0 / (step + 1)}, step=step)
    print(step, flush=True)
"""


def lines_of(logger):
    return [json.loads(line) for line in logger.path.read_text().splitlines()]


def test_a_line_has_the_step_a_timestamp_and_the_metrics(tmp_path):
    logger = JSONLLogger(tmp_path / "logs" / "experiment_001")
    logger.log({"loss": 0.5, "reward": 1.0, "step": 7, "note": "warm", "is_new": True, "accuracy": None}, step=42)
    logger.finish()
    logger.finish()
    assert logger.path == tmp_path / "logs" / "experiment_001" / "metrics.jsonl"
    (line,) = lines_of(logger)
    assert line.pop("timestamp") > 1.7e9
    assert line == {"step": 42, "loss": 0.5, "reward": 1.0, "note": "warm", "is_new": True, "accuracy": None}


def test_every_step_that_was_logged_is_there_after_kill_9(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, tmp_path], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) == 500:
            break
    process.send_signal(signal.SIGKILL)
    logged = 500 + len(process.stdout.read().splitlines())
    process.wait(timeout=60)
    process.stdout.close()
    logger = JSONLLogger(tmp_path)
    logger.log({}, step=-1)
    logger.finish()
    steps = [line["step"] for line in lines_of(logger)]
    assert steps == [*range(len(steps) - 1), -1]
    assert len(steps) - 1 > logged


@pytest.mark.parametrize("torn", [b'{"step": 2, "lo', b"x" * 200_000])
def test_a_run_that_goes_on_appends_after_half_a_line_was_cut(tmp_path, torn):
    first = JSONLLogger(tmp_path)
    for step in range(2):
        first.log({"loss": 1.0}, step=step)
    first.finish()
    with first.path.open("ab") as stream:
        stream.write(torn)
    second = JSONLLogger(tmp_path)
    second.log({"loss": 2.0}, step=2)
    second.finish()
    assert [line["step"] for line in lines_of(second)] == [0, 1, 2]


def test_a_file_that_is_half_a_line_alone_is_begun_anew(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step"')
    logger = JSONLLogger(tmp_path)
    logger.finish()
    assert logger.path.read_bytes() == b""


def test_numbers_that_are_not_finite_are_texts_that_float_reads(tmp_path):
    logger = JSONLLogger(tmp_path)
    logger.log({"a": math.nan, "b": -math.inf, "c": np.float32(math.inf), "d": np.int64(3), "e": torch.tensor(2.5)}, 0)
    logger.finish()
    (line,) = lines_of(logger)
    assert (line["a"], line["b"], line["c"], line["d"], line["e"]) == ("NaN", "-Infinity", "Infinity", 3, 2.5)
    assert math.isnan(float(line["a"]))


def test_there_is_no_end_of_the_lines(tmp_path):
    """The millionth line is like any other."""
    logger = JSONLLogger(tmp_path)
    logger.path.write_bytes(b'{"step": 0}\n' * 1_000_000)
    logger.log({}, step=1_000_000)
    logger.finish()
    assert logger.path.read_bytes().count(b"\n") == 1_000_001


@pytest.mark.parametrize("value", [[1.0], {"a": 1}, np.ones(2), object()])
def test_a_metric_that_is_no_single_value_is_refused_by_its_name(tmp_path, value):
    logger = JSONLLogger(tmp_path)
    with pytest.raises(TypeError, match="grad_norms"):
        logger.log({"grad_norms": value}, step=0)
    logger.finish()
    assert lines_of(logger) == []


def test_what_is_logged_after_the_end_is_refused(tmp_path):
    logger = JSONLLogger(tmp_path)
    logger.finish()
    with pytest.raises(ValueError, match="closed"):
        logger.log({}, step=0)


def test_a_directory_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=str(tmp_path / "file")):
        JSONLLogger(tmp_path / "file" / "logs")


def test_a_full_disk_is_told_and_nothing_is_lost_once_there_is_room(tmp_path):
    logger = JSONLLogger(tmp_path)
    logger.log({"loss": 1.0}, step=0)
    with room_for(100), pytest.raises(MachineError, match=r"metrics\.jsonl"):
        logger.log({"loss": 1.0, "note": "x" * 100}, step=1)
    logger.log({}, step=2)
    logger.finish()
    assert [line["step"] for line in lines_of(logger)] == [0, 1, 2]
