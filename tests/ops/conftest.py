"""What these tests need beside Python: prometheus and promtool, of Debian's package prometheus."""

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def promtool() -> str:
    """Path of promtool; without it the test fails where CI=true, and is skipped elsewhere."""
    return _path_of("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The same of Prometheus itself."""
    return _path_of("prometheus")


def _path_of(program: str) -> str:
    found = shutil.which(program)
    if found is not None:
        return found
    said = f"{program} is not there: install Debian's package prometheus"
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)
