"""What the tests of faults and of hostile records share."""

from tests.harness.loop_fixtures import model

__all__ = ["model"]
