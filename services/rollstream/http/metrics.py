"""The Prometheus metrics of HTTP servers: the endpoint of a generator, and ingest."""

from prometheus_client import Counter, Gauge

from rollstream.http.refusals import Reason

REQUESTS = Counter(
    "rollstream_http_requests_total", "Requests that were answered, refused ones too", ["server", "route", "code"]
)
IN_WORK = Gauge("rollstream_http_calls_in_work", "Calls that are being answered", ["server"])
BODIES = Gauge("rollstream_http_bodies_bytes", "Bytes of the bodies of calls in work", ["server"])
REFUSED = Counter(
    "rollstream_http_refused_total", "Requests and connections that were refused or cut, by why", ["server", "reason"]
)
CONNECTIONS = Gauge("rollstream_http_connections", "Connections that are open", ["server"])


def show_from_the_start(server: str) -> None:
    """Make the series that there can be: Prometheus sees no increase where a series begins."""
    for reason in Reason:
        REFUSED.labels(server=server, reason=reason.value)
    for gauge in (IN_WORK, BODIES, CONNECTIONS):
        gauge.labels(server=server).set(0)
