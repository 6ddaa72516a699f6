"""Fixtures every test may ask for, and how the suite is divided between processes."""

import os
import signal
import sys

from hypothesis import HealthCheck, settings

from tests.harness.kafka_fixtures import forks, kafka, redis_url, topic_prefix
from tests.harness.lane_hooks import (
    pytest_collection_finish,
    pytest_configure,
    pytest_configure_node,
    pytest_terminal_summary,
    pytest_unconfigure,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

# A shell that starts the suite in the background has SIGINT ignored, and every process that tests start inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where bytecode is not kept, each of the many processes of a run compiles torch and all other libraries for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What an example takes depends on what runs beside it.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

__all__ = [
    "forks",
    "kafka",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_terminal_summary",
    "pytest_unconfigure",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "redis_url",
    "topic_prefix",
]
