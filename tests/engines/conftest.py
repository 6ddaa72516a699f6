"""Fixtures of the engine tests."""

from tests.harness.engine_fixtures import engine_hosts, models

__all__ = ["engine_hosts", "models"]
