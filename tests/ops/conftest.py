"""What these tests need beside Python: promtool, of Debian's package prometheus."""

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def promtool() -> str:
    """Path of promtool; without it the test fails where CI=true, and is skipped elsewhere."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    said = "promtool is not there: install Debian's package prometheus"
    if os.environ.get("CI") == "true":
        pytest.fail(said)
    pytest.skip(said)
