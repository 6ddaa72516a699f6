"""All metrics of the bus. Values are in base units. Labels have few values (topics, groups, reasons), never ids."""

from typing import Final

from prometheus_client import Counter, Gauge

CONSUMED: Final = Counter("rollstream_bus_consumed_records_total", "Records taken from a topic", ["topic"])
PUBLISHED: Final = Counter("rollstream_bus_published_records_total", "Records confirmed by the broker", ["topic"])
DEAD_LETTERS: Final = Counter(
    "rollstream_bus_dead_letters_total", "Records put into dead-letters, by why", ["topic", "reason"]
)
HANDLER_FAILURES: Final = Counter(
    "rollstream_bus_handler_failures_total", "Readable records whose handler raised", ["topic"]
)
IN_FLIGHT: Final = Gauge("rollstream_bus_in_flight_records", "Records taken and not finished", ["group"])
IN_FLIGHT_WEIGHT: Final = Gauge(
    "rollstream_bus_in_flight_weight",
    "Sum of the weights of the records in flight (generator: samples, tokens where max_tokens_in_flight is set)",
    ["group"],
)
OLDEST_UNFINISHED: Final = Gauge(
    "rollstream_bus_oldest_unfinished_timestamp_seconds",
    "Since when the record is handled that takes longest, Unix time; 0 if none is",
    ["group"],
)
COMMITS: Final = Counter("rollstream_bus_commits_total", "Offset commits, by how they ended", ["group", "outcome"])
LAG: Final = Gauge(
    "rollstream_bus_consumer_lag_records",
    "Records between the commit and the end of our partitions",
    ["group", "topic"],
)
REBALANCES: Final = Counter(
    "rollstream_bus_rebalances_total", "Partitions assigned, revoked and lost, by event", ["group", "event"]
)
PAUSED: Final = Gauge("rollstream_bus_paused_ratio", "1 while fetching is paused for a full backlog, else 0", ["group"])
