"""The ingest server: feedback and prompts of clients over HTTP, each answered with 202 once the broker has it.

Produces   `feedback`; `ingest-prompts` (to train on); `serve-prompts`.
Waits for  the broker's confirmation of each request, for `confirm_seconds`.

What happens when …
  … the broker is away: requests end as 503 with Retry-After, and the server is not ready. It goes on by itself.
  … Redis is away: what comes again is written again, under the same ids, so that it counts once.
  … this process is killed: a request without its 202 may be on its topic or not. Its client sends it again, with the
    same Idempotency-Key, to any other server: nothing is kept here.
  … it is asked to stop: it is not ready, takes no new request, and those in work end.
  … the client of Kafka gives up for good: the process ends, non-zero.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from rollstream.bus.admin import KafkaAdmin
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.http.keys import Keys
from rollstream.http.server import Address, HttpServer
from rollstream.ingest import metrics
from rollstream.ingest.app import ROUTES, build_app
from rollstream.ingest.inlet import TOPICS, Inlet
from rollstream.ingest.memory import ConfirmedEntries
from rollstream.ingest.settings import IngestSettings
from rollstream.process.beat import beat
from rollstream.process.health import Health
from rollstream.process.settings.address import revealed
from rollstream.process.stop import Stop, first_to_end
from rollstream.process.tracing.begin import require_tracing, tracing_of
from rollstream.schemas.errors import BrokerError, ConfigurationError
from rollstream.stage.maybe_redis import MaybeRedis

_LOG = logging.getLogger(__name__)

_NAME: Final = "ingest"
_LOOK_EVERY_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 5.0


async def run_ingest(settings: IngestSettings, stop: Stop) -> None:
    """Serve until `stop` is asked. Raises `ConfigurationError` and `BrokerError` as the docstring above says."""
    settings.log_resolved()
    require_tracing(settings.tracing)
    metrics.show_from_the_start()
    health = Health()
    health.serve(settings.health_host, settings.health_port)
    redis = MaybeRedis(revealed(settings.redis_url), without="what comes again is written again")
    try:
        await _serve(settings, redis, health, stop)
    finally:
        await redis.close()
        health.close()


async def _serve(settings: IngestSettings, redis: MaybeRedis, health: Health, stop: Stop) -> None:
    run = Run(settings)
    run.make_codecs(*TOPICS)
    confirmed = ConfirmedEntries(redis, run.name, keep_seconds=settings.idempotency_seconds)
    publisher = run.publisher(run.group(_NAME))
    try:
        with tracing_of(settings.tracing, stage=_NAME, run=settings.run) as tracing:
            inlet = Inlet(settings, run, publisher, confirmed=confirmed, tracing=tracing)
            server = HttpServer(
                build_app(inlet),
                name=_NAME,
                address=Address(host=settings.host, port=settings.port),
                guard=settings.guard,
                keys=Keys(settings.keys, settings.host),
                routes=ROUTES,
            )
            await server.start()
            try:
                await first_to_end(
                    _watch(run, publisher, confirmed, health), beat(health, lambda: redis.state), stop.asked()
                )
                health.draining()
                await server.drain(settings.confirm_seconds)
            finally:
                await server.close()
    finally:
        await _close(publisher)


async def _watch(run: Run, publisher: Publisher, confirmed: ConfirmedEntries, health: Health) -> None:
    """Report for ever whether the broker answers and has the topics. Raises `BrokerError` once it never will."""
    admin = run.admin()
    names = [run.topic(topic) for topic in TOPICS]
    while True:
        publisher.require_alive()
        try:
            confirmed.topic_ids = await asyncio.to_thread(_topic_ids, admin, names)
        except (BrokerError, ConfigurationError) as error:
            health.check("broker", False, str(error))
        else:
            health.check("broker", True, "it answers")
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


def _topic_ids(admin: KafkaAdmin, names: list[str]) -> Mapping[str, str]:
    asked = admin.ask_topics(names, _ANSWER_SECONDS)
    return {name: asked.shape(name).topic_id for name in names}


async def _close(publisher: Publisher) -> None:
    try:
        await asyncio.to_thread(publisher.close)
    except BrokerError as error:
        # Their clients were told that they are not confirmed.
        _LOG.warning("%s", error)
