"""Commands and functions that start fast: each is forked from a process that has imported the product already."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.harness.processes import StartedProcess

# Imports take longer than anything else that a stage does in a test. So one process imports them, and each stage is
# forked from it.
_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(
    [
        "rollstream.generator.loop",
        "rollstream.engines.scripted",
        "rollstream.producers.loop",
        "rollstream.scorer.loop",
        "rollstream.trainer.learning.backends.single_device",
        "rollstream.trainer.start",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.qwen3.modeling_qwen3",
        "rollstream.cli.archive",
        "rollstream.collect.archive.follow",
        "rollstream.cli.collect",
        "rollstream.collect.continuous.run",
        "rollstream.collect.scores.run",
        # The last one.
        "tests.harness.frozen_heap",
    ]
)
# Else a stage would have the variables of whichever test it was that forked first.
_ENVIRONMENT = dict(os.environ)


def start_forked(main: Callable[[], None], *, log: Path, env: Mapping[str, str] | None = None) -> StartedProcess:
    """Run `main` in a process that is forked from one with the product's imports; its output goes to `log`."""
    log.touch()
    process = _FORK_SERVER.Process(target=_logged, args=(main, log, {**_ENVIRONMENT, **(env or {})}), daemon=True)
    process.start()
    assert process.pid is not None
    return StartedProcess(pid=process.pid, exit_code=lambda: process.exitcode, log=log)


def start_command(*words: str, log: Path, env: Mapping[str, str] | None = None) -> StartedProcess:
    """Start `rollstream WORDS`, forked as `start_forked` does it."""
    return start_forked(partial(run_words, *words), log=log, env=env)


def run_words(*words: str) -> None:
    """Be `rollstream WORDS` in this process."""
    from rollstream.cli.main import main

    sys.argv = ["rollstream", *words]
    main()


def _logged(main: Callable[[], None], log: Path, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    main()
