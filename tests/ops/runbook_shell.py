"""A person who follows a runbook in a container of a stage: runs its commands, with words in capitals filled in."""

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollstream.schemas.topics import LEDGER, ROLLOUTS, WEIGHTS
from tests.harness.image_environment import ImageEnvironment
from tests.ops.whole_stack import WholeStack

ROLLBACK: Final = "rollstream weights rollback VERSION"
CHANGES: Final = (ROLLBACK, "rollstream ledger repair --all")
"""What changes what counts. The second one has nothing to repair here."""
EVALUATE: Final = "rollstream evaluate"
"""Needs a version that stays for longer than a step of a toy takes."""
_SECONDS: Final = 240


@dataclass(frozen=True, kw_only=True)
class RunbookShell:
    """`words`: what stands for the words of the runbooks."""

    image: ImageEnvironment
    variables: dict[str, str]
    words: dict[str, str]
    directory: Path

    def problem_of(self, command: str) -> str | None:
        """What it said if it failed; None if it did not."""
        words = [self.words.get(word, word) for word in shlex.split(command)[1:]]
        done = subprocess.run(
            [str(self.image.program), *words],
            cwd=self.directory,
            env={**self.image.variables, **self.variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        return None if done.returncode == 0 else f"{done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}"


def a_shell(stack: WholeStack, image: ImageEnvironment, directory: Path, *, versions_back: int) -> RunbookShell:
    """Beside the generator, with what the chart gives to its container. VERSION is so many before the newest."""
    run = stack.loop.run
    weights, ledger = run.records(WEIGHTS), run.records(LEDGER)
    (letter, *_) = json.loads(run.command("dead-letters", "list", "--json"))
    return RunbookShell(
        image=image,
        variables={"ROLLSTREAM_CONFIG": str(run.config), **stack.variables},
        words={
            "VERSION": str(weights[-1].weight_version - versions_back),
            "4711": str(max(entry.step for entry in ledger)),
            "ROLLOUT_ID": run.records(ROLLOUTS)[-1].rollout_id,
            "IDENTITY": letter["identity"],
            "9100": str(stack.ports["generator"]),
        },
        directory=directory,
    )
