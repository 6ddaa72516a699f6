"""The training lane of a generator that answers clients: made anew after an error of the bus, beside the endpoint."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from rollstream.generator.serve import metrics
from rollstream.process.health import Health
from rollstream.process.stop import Stop, first_to_end
from rollstream.schemas.errors import BrokerError, RegistryError, TopicChangedError

_LOG = logging.getLogger(__name__)

_LANE: Final = "training"
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_HEALTHY_AFTER_SECONDS: Final = 60.0
_ENDS_SECONDS: Final = 45.0
"""Longer than the lane's handlers have to end. What blocks it is a broker that does not answer: nothing is lost."""


async def outlived(run_lane: Callable[[Health], Awaitable[None]], health: Health, stop: Stop) -> None:
    """Run the lane until `stop` is asked; after an error of the bus, which a later try may not meet, make it anew.

    Raises any other error: it ends the process, as without an endpoint. So does a topic that was made anew: weights of
    the run before must not answer for versions of this one.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not stop.is_asked:
        lane, began = health.lane(_LANE), time.monotonic()
        try:
            await first_to_end(run_lane(lane), _long_after(stop))
        except TopicChangedError:
            raise
        except (BrokerError, RegistryError) as error:
            if time.monotonic() - began > _HEALTHY_AFTER_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            _LOG.error("the training lane begins anew in %g s, clients are answered on: %s", pause, error)
            lane.check("lane", False, f"begins anew: {error}")
            metrics.LANE_RESTARTS.inc()
            await first_to_end(asyncio.sleep(pause), stop.asked())
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _long_after(stop: Stop) -> None:
    await stop.asked()
    await asyncio.sleep(_ENDS_SECONDS)
