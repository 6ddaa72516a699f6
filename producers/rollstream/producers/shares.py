"""Adds up the shares of the producers that live. Each reports its own through Redis, and warns if the sum is too large.

No stage depends on it. The sum is for people, who set the shares of several producers by hand. Without Redis nothing
is reported.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rollstream.process.fleet import Fleet, beating, shares_of
from rollstream.process.settings.address import revealed
from rollstream.producers.settings import ProducerSettings

_LOG = logging.getLogger(__name__)


class ShareReport:
    """Reports the share of one producer, and reads those of the others."""

    def __init__(self, fleet: Fleet, settings: ProducerSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._reported_sum: int | None = None

    def beat(self) -> None:
        """Report that this producer lives; warn if the sum of the shares exceeds the bound and has changed."""
        settings = self._settings
        share = settings.share if settings.purpose == "train" else 0
        # By name, which a restart keeps: a producer that was killed and started again counts once.
        self._fleet.beat(
            f"producer {settings.name}", {"stage": "producer", "share": share, "bound": settings.max_open_groups}
        )
        shares = shares_of(self._fleet.members())
        if shares is None or shares.total == self._reported_sum:
            return
        self._reported_sum = shares.total
        if shares.total > shares.bound:
            _LOG.warning(
                "the shares of the producers that live add up to %d (%s), the bound is (max_policy_lag + 1) x "
                "groups_per_step = %d: prompts may grow too old to train on; lower the shares",
                shares.total, ", ".join(f"{name}: {share}" for name, share in shares.by_member.items()), shares.bound,
            )  # fmt: skip


@contextmanager
def reported(settings: ProducerSettings) -> Iterator[None]:
    """Report the share while the block runs."""
    if settings.redis_url is None:
        yield
        return
    report = ShareReport(Fleet(revealed(settings.redis_url), settings.run), settings)
    with beating(report.beat):
        yield
