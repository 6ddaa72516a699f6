"""Whether a run's topics keep their records as long as feedback needs. Asked at the start.

An answer and the feedback on it must be there for the window, and a day more. And the window must end before the
trainer forgets which groups closed: it does after `prompts` and `scored` lost their records. Else an answer could train
twice.
"""

from collections.abc import Mapping
from typing import Any, Final

from rollstream.bus.run import Run
from rollstream.producers.feedback.settings import DAY_SECONDS, FeedbackSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.topics import FEEDBACK, PROMPTS, SCORED, SERVE_SCORED, Topic

_JOINED: Final[tuple[Topic[Any], ...]] = (FEEDBACK, SERVE_SCORED)
_TRAINED: Final[tuple[Topic[Any], ...]] = (PROMPTS, SCORED)


def refuse_short_topics(run: Run, settings: FeedbackSettings) -> None:
    """Raise `ConfigurationError` with the remedy if a topic keeps too little, `BrokerError` if no broker answers."""
    configs = run.admin().configs([run.topic(topic) for topic in (*_JOINED, *_TRAINED)])
    days = settings.window_days
    for topic in _JOINED:
        _refuse_joined(run.topic(topic), configs[run.topic(topic)], days)
    for topic in _TRAINED:
        kept_days = _kept_days(configs[run.topic(topic)])
        if kept_days is not None and days >= kept_days:
            raise ConfigurationError(
                f"window_days {days:g} is not below the {kept_days:g} days that {run.topic(topic)} keeps records: a "
                "trainer would forget which answers it trained on, and train on some again; lower window_days, or "
                "raise the topic's retention.ms"
            )


def _refuse_joined(name: str, config: Mapping[str, str], days: float) -> None:
    kept_days = _kept_days(config)
    if kept_days is not None and kept_days < days + 1:
        needed_ms = round((days + 1) * DAY_SECONDS * 1000)
        raise ConfigurationError(
            f"{name} keeps records for {kept_days:g} days, less than window_days {days:g} and one more: lower "
            f"window_days to {max(kept_days - 1, 0):g}, or set its retention.ms to {needed_ms}"
        )
    if int(config["retention.bytes"]) >= 0:
        raise ConfigurationError(
            f"{name} has retention.bytes {config['retention.bytes']}, so that records may go before their window ends: "
            "set it to -1"
        )
    if config["message.timestamp.type"] != "LogAppendTime":
        raise ConfigurationError(
            f"{name} has message.timestamp.type {config['message.timestamp.type']}, so that times are anybody's word: "
            "set it to LogAppendTime"
        )


def _kept_days(config: Mapping[str, str]) -> float | None:
    """How long every record is kept at least; None: for ever."""
    retention_ms = int(config["retention.ms"])
    return None if retention_ms < 0 else retention_ms / 1000 / DAY_SECONDS
