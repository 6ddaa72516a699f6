"""What tests of the trainer share: a tiny model, a fresh run, and what starts trainers of it.

A file about another stage has a fixture `run` of its own.
"""

from tests.harness.loop_fixtures import model
from tests.harness.trainer_fixtures import run, start

__all__ = ["model", "run", "start"]
