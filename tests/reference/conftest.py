"""What all comparisons share."""

import pytest

from tests.reference.comparison import Reference


@pytest.fixture(scope="package")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Both sides, made once."""
    return Reference(tmp_path_factory.mktemp("reference"))
