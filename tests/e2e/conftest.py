"""What the whole-loop tests share."""

from tests.harness.loop_fixtures import model, run

__all__ = ["model", "run"]
