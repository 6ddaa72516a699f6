"""What a process exports to Prometheus, asked for as a scrape does."""

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
