"""Makes the environment, the source and the sampling that the settings name."""

from collections.abc import Iterator
from contextlib import contextmanager

from rollstream.agents.load import refuse_unknown_agent
from rollstream.environments.load import load_environment, refuse_unknown_environment
from rollstream.environments.protocol import Environment
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.environment import EnvironmentSource
from rollstream.producers.sources.jsonl import JsonlSource
from rollstream.producers.sources.protocol import Source
from rollstream.schemas.errors import ConfigurationError, UnknownEnvironmentError
from rollstream.schemas.prompt import Sampling


def environment_of(settings: ProducerSettings) -> Environment:
    """The environment that the settings name; raises `ConfigurationError` if there is none of this name."""
    try:
        return load_environment(settings.environment, settings.environments)
    except UnknownEnvironmentError as error:
        raise ConfigurationError(f"settings of producer: {error}") from error


def sampling_of(settings: ProducerSettings) -> Sampling:
    """How to sample: as set, else as the environment says, else the record's defaults."""
    if settings.sampling is not None or not settings.environment:
        return settings.sampling or Sampling()
    return environment_of(settings).sampling


@contextmanager
def opened_source(settings: ProducerSettings) -> Iterator[Source]:
    """The source during the block. Raises `ConfigurationError` as `build_source` does, `BrokerError`."""
    if settings.source != "ingest":
        yield build_source(settings)
        return
    # Imports the client of Kafka, which only this source needs.
    from rollstream.producers.sources.ingest import IngestSource

    with IngestSource(settings) as source:
        yield source


def build_source(settings: ProducerSettings) -> Source:
    """Open a source of files or of an environment.

    Raises `ConfigurationError` that says what is wrong with the file, the environment or the agent.

    Prompts that name an unknown environment or agent would all fail.
    """
    refuse_unknown_agent(settings.agent.name, settings.agents)
    if settings.environment:
        refuse_unknown_environment(settings.environment, settings.environments)
    if settings.source == "environment" or settings.path is None:
        return EnvironmentSource(environment_of(settings), split=settings.split, seed=settings.seed)
    if settings.source == "jsonl":
        return JsonlSource(settings.path, seed=settings.seed)
    # Imports pyarrow, which only this source needs.
    from rollstream.producers.sources.parquet import ParquetSource

    return ParquetSource(settings.path, seed=settings.seed)
