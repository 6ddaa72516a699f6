"""A copy of the working tree in which changes are planted and tests are run; the tree itself stays as it is."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.harness.lanes import ROOT
from tests.mutations.kinds import Mutation

_SOURCES: Final = ("schemas", "services", "producers", "trainer")
_MOST_SECONDS: Final = 900
_SECONDS_TO_END: Final = 60
_SOME_FAILED: Final = 1
_NONE_COLLECTED: Final = 5
_MADE: Final = {
    "helm/dashboards/": ("helm.dashboards.build",),
    "helm/rollstream/values.yaml": ("helm.chart_schema", "helm.chart_readme"),
}
"""What a person runs after such a change; else a test that compares with what is made would notice any."""


class NoVerdictError(Exception):
    """Tests ended, or were ended, in a way that says nothing about the change."""


class TreeCopy:
    """A clone below `directory`, with what is not committed.

    `passing`: tests that were seen to pass without a change.
    """

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        self.passing: set[str] = set()
        _run(["git", "clone", "--quiet", "--shared", str(ROOT), str(self.root)], ROOT)
        listed = ["git", "ls-files", "--modified", "--others", "--exclude-standard", "--deduplicate"]
        for name in _run(listed, ROOT).splitlines():
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
            else:
                (self.root / name).unlink(missing_ok=True)
        who = ["-c", "user.name=copy", "-c", "user.email=copy@localhost"]
        _run(["git", "add", "--all"], self.root)
        _run(["git", *who, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", "as it is"], self.root)

    @contextmanager
    def planted(self, mutation: Mutation) -> Iterator[str]:
        """The change for as long as this is entered. Gives what was said if making failed, else an empty text."""
        path = self.root / mutation.file
        path.write_text(mutation.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        try:
            yield self.made_from(mutation.file)
        finally:
            _run(["git", "checkout", "--quiet", "."], self.root)
            _run(["git", "clean", "--quiet", "--force", "-d"], self.root)

    def made_from(self, file: str) -> str:
        """Make again what is made from the file. What was said if that failed, else an empty text."""
        for start, modules in _MADE.items():
            for module in modules if file.startswith(start) else ():
                made = self._python("-m", module)
                if made.returncode != 0:
                    return f"{module}: {made.stderr.strip().splitlines()[-1:]}"
        return ""

    def first_failure(self, tests: Sequence[str], but: Sequence[str] = ()) -> str | None:
        """The name of the first test that fails, `but` these; None if all pass. NoVerdictError: no test said so."""
        if not tests:
            return None
        left_out = [word for test in but for word in ("--deselect", test)]
        done = self._python("-m", "pytest", "-n0", "-x", "-p", "no:cacheprovider", "--color=no", *left_out, *tests)
        if done.returncode in (0, _NONE_COLLECTED):
            return None
        # A line of a captured log begins with ERROR too, and names no test.
        named = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode != _SOME_FAILED or not named:
            raise NoVerdictError(f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
        return str(named[0])

    def passes_as_it_is(self, test: str) -> bool:
        """Whether the test passes without a change; asked once for each, since the whole stack takes minutes."""
        if test not in self.passing and self.first_failure([test]) is None:
            self.passing.add(test)
        return test in self.passing

    def _python(self, *words: str) -> subprocess.CompletedProcess[str]:
        paths = [str(self.root), *(str(self.root / folder) for folder in _SOURCES)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *words]
        with subprocess.Popen(
            command, cwd=self.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                said, complained = process.communicate(timeout=_MOST_SECONDS)
            except subprocess.TimeoutExpired:
                _end(process)
                raise NoVerdictError(f"no end within {_MOST_SECONDS} s: {' '.join(words)[-300:]}") from None
        return subprocess.CompletedProcess(command, process.returncode, said, complained)


def _end(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does: tests end the brokers and processes that they have started."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()


def _run(command: list[str], directory: Path) -> str:
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout
