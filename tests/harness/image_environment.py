"""What the image of a stage has, without an engine for containers: its packages and variables, and nothing else.

A virtual environment of links to the packages here that the Dockerfile would install. The interpreter is the one of
these tests, and so are the programs of the system.
"""

import re
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.harness.processes import ROOT

DOCKERFILE: Final = ROOT / "services" / "Dockerfile"
_FOLDERS: Final = ("schemas", "services", "producers", "trainer")
_PROGRAM: Final = """\
#!{python}
from rollstream.cli.entry import main

main()
"""


@dataclass(frozen=True, kw_only=True)
class ImageEnvironment:
    """`program`: the command `rollstream`. `variables`: all that its process has; `/cache` is a directory here."""

    program: Path
    variables: dict[str, str]


def image_environment(directory: Path) -> ImageEnvironment:
    """That of the target `cpu`, made in a second."""
    home = directory / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    wanted = {"rollstream", *_packages()}
    for distribution in distributions():
        if canonicalize_name(distribution.name) in wanted:
            for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (packages / name).exists():
                    (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    own = packages / "_rollstream.pth"
    own.unlink(missing_ok=True)  # a link by now: what is written would go to the environment of these tests
    own.write_text("".join(f"{ROOT / folder}\n" for folder in _FOLDERS))
    program = home / "bin" / "rollstream"
    program.write_text(_PROGRAM.format(python=home / "bin" / "python"))
    program.chmod(0o755)
    (cache := directory / "cache").mkdir()
    variables = {name: value.replace("/cache", str(cache)) for name, value in _variables()}
    return ImageEnvironment(program=program, variables={**variables, "PATH": f"{home / 'bin'}:/usr/bin:/bin"})


def _packages() -> Iterator[str]:
    """Names of what `uv sync` installs while the image is built."""
    words = re.findall(r"--(?:no-default-groups|(?:group|extra) \w+)", _part("builder-cpu").rpartition("uv sync")[2])
    command = ["uv", "export", "--locked", "--offline", "--no-emit-project", "--no-hashes", "--no-annotate",
               "--no-header", *" ".join(words).split()]  # fmt: skip
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    for line in listed.splitlines():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            yield canonicalize_name(requirement.name)


def _variables() -> Iterator[tuple[str, str]]:
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)", _part("runtime"), re.MULTILINE)
    for word in block.replace("\\\n", " ").split():
        name, _, value = word.partition("=")
        yield name, value


def _part(stage: str) -> str:
    (found,) = re.findall(
        rf"^FROM \S+ AS {stage}\n(.*?)(?=^FROM |\Z)", DOCKERFILE.read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)
