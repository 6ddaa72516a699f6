"""Collections as processes: ended early, and with many rows."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.harness.collecting import lines_of, noted_samples, some_prompts
from tests.harness.forking import start_forked
from tests.harness.processes import ROOT, StartedProcess
from tests.harness.waits import wait_until

CONFIG = """
[generator.engine]
kind = "scripted"
model_path = "no-tokenizer"

[generator.engine.scripted]
token_seconds = 0.05
"""


def be_collect(*words: str) -> None:
    """Be `rollstream collect WORDS`."""
    from rollstream.cli.collect import command

    command.main(list(words))


def started(tmp_path: Path, output: Path, source: Path) -> StartedProcess:
    config = tmp_path / "engine.toml"
    config.write_text(CONFIG)
    fixed = ["--output", str(output), "--config", str(config), "--num-samples", "2", "--max-tokens", "16"]
    call = partial(be_collect, str(source), *fixed, "--concurrency", "16")
    return start_forked(call, log=tmp_path / "collect.log", env={"OMP_NUM_THREADS": "1"})


def test_sigterm_ends_a_collection_early_and_the_same_command_goes_on(tmp_path):
    source, output = some_prompts(tmp_path / "data.jsonl", 200), tmp_path / "out.jsonl"
    progress = tmp_path / "out.jsonl_progress.sqlite"
    process = started(tmp_path, output, source)
    wait_until(lambda: noted_samples(progress) or process.has_ended, process.said)
    # What has ended is noted, not only what was committed before.
    assert process.terminate() == 130
    assert "the same command goes on from there" in process.said()
    assert not output.exists()
    assert started(tmp_path, output, source).wait() == 0
    assert len(lines_of(output)) == 400


PEAK = """
import sys
from pathlib import Path
from tests.harness.collecting import collected, settings_for
rows, name = int(sys.argv[1]), sys.argv[2]
source = Path(sys.argv[3])
output = source.with_name(f"out-{rows}.{name}")
collected(source, settings_for(output, kind=name, num_samples=1, concurrency=64))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def peak_kilobytes(source: Path, rows: int, kind: str) -> int:
    """Peak memory of a process of its own that collects from a file of so many rows."""
    command = [sys.executable, "-c", PEAK, str(rows), kind, str(source)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.timeout(3600)
def test_the_peak_of_memory_does_not_grow_with_the_number_of_rows(tmp_path):
    peaks = []
    for rows in (10_000, 30_000):
        source = some_prompts(tmp_path / f"data-{rows}.jsonl", rows)
        peaks.append(peak_kilobytes(source, rows, "parquet"))
    # What each row leaves behind may be at most 0.6 kB.
    assert peaks[1] <= 1.08 * peaks[0], f"{peaks} kB"
    assert peaks[1] < 1_000_000
