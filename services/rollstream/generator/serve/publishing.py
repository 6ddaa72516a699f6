"""Publishes the answers of the spool on `serve-rollouts`, oldest first, for as long as the process lives.

An answer leaves the spool after its delivery report. Without a broker the answers wait there; with it they are tried
again. What was delivered without a report comes twice, with the same ids and the same bytes.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.generator.serve.recorder import SpoolRecorder
from rollstream.schemas.errors import BrokerError

_LOG = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 1.0
"""A delivery has failed only after it was tried for two minutes."""


async def publish_spooled(recorder: SpoolRecorder, run: Run, client_id: str) -> None:
    """Publish until it is cancelled."""
    while True:
        publisher = run.publisher(client_id)
        try:
            while True:
                await _publish_next(recorder, publisher)
        except BrokerError as error:
            _LOG.warning("%d answers wait in the spool: %s", recorder.num_records, error)
        finally:
            # What is still out is published again, so it is not waited for.
            with suppress(BrokerError):
                await asyncio.to_thread(publisher.close, 0.0)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _publish_next(recorder: SpoolRecorder, publisher: Publisher) -> None:
    """Publish the oldest answers and forget those that were delivered. Raises the first `BrokerError`."""
    spooled = await recorder.oldest()
    outcomes = await asyncio.gather(
        *(publisher.publish(recorder.out_record(one)) for one in spooled), return_exceptions=True
    )
    delivered = [
        one.number for one, outcome in zip(spooled, outcomes, strict=True) if not isinstance(outcome, BaseException)
    ]
    if delivered:
        await recorder.published(delivered)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
