"""What the stages export is what promtool calls good."""

import subprocess
import sys

from rollstream.local.metric_list import all_metrics

# In a process of its own: a series of each labeled metric is made, which others would see.
_EXPOSITION = """
from prometheus_client import REGISTRY, disable_created_metrics, generate_latest
from rollstream.local.metric_list import all_metrics
all_metrics()
for collector in set(REGISTRY._names_to_collectors.values()):
    if names := getattr(collector, "_labelnames", ()):
        collector.labels(*names)
disable_created_metrics()
print(generate_latest().decode(), end="")
"""


def test_promtool_finds_nothing_to_say_about_the_metrics(promtool: str) -> None:
    made = subprocess.run([sys.executable, "-c", _EXPOSITION], capture_output=True, text=True, check=True, timeout=60)
    own = "".join(line for line in made.stdout.splitlines(keepends=True) if "rollstream_" in line)
    assert all(f"# TYPE {metric.name} " in own for metric in all_metrics())
    done = subprocess.run(
        [promtool, "check", "metrics"], input=own, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
