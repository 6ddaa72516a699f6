"""What every process exports to Prometheus, whatever its stage."""

from typing import Final

from prometheus_client import Gauge

READY: Final = Gauge("rollstream_process_ready", "1 while every part of the process is ready, as /readyz says, else 0")
