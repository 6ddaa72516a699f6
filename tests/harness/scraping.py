"""What a process says of itself over HTTP: its metrics, as a scrape gets them, and whether it is ready."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def scraped(port: int, name: str, **labels: str) -> float | None:
    """The value of one series, by its full name and all of its labels; None where there is none, or nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), None)


def is_ready(port: int) -> bool:
    """Whether a stage that serves on this port says that it is ready; False too where none answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
