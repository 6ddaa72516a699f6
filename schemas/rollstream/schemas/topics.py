"""The topics of a run: name, record, key, retention, and who writes and reads each.

A run is a topic prefix: many runs share a cluster, and deleting all topics with the prefix ends the run. Names in
backquotes are commands. Four commands are not repeated at each topic. `tail` reads any of them, `demo` most, `lineage`
all but `producers`, `weights-applied` and `dead-letters`. `dead-letters replay` reads a message where it lies and
writes it to the same topic again, and a marker to `dead-letters`. `bus/admin.py` says what each retention means.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar

from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.ids import checked_run
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import Record
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.weights import WeightsApplied, WeightsPublished

R = TypeVar("R", bound=Record)

Retention = Literal["time_and_size", "time", "everything", "compacted", "compacted_for_a_day", "long"]

TOPIC_BYTES: Final = 7 * 2**20
"""What the topics take at once. dead-letters takes 1 MiB more, so that any record fits there with its headers."""
MAX_RECORD_BYTES: Final = TOPIC_BYTES - 2**16
"""Largest encoded record; the rest is for its key, its headers and Kafka's own bytes."""
MAX_ROLLOUT_BYTES: Final = MAX_RECORD_BYTES - 2**16
"""Largest encoded rollout: any that can be read fits, without its tokens, into the record of its scoring."""
MAX_PROMPT_BYTES: Final = MAX_RECORD_BYTES - 2**20
"""Largest encoded prompt: any that can be read fits into the record of a failed sample."""
MAX_INGESTED_BYTES: Final = MAX_PROMPT_BYTES - 2**14
"""Largest encoded prompt of a client: the producer that poses it adds names of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(Generic[R]):
    """One topic of a run; `record` is None for dead-letters, which carries the original bytes.

    `key` says in words what `key_of` computes from a record. Without `key_of` the key is the run's
    name; a dead letter keeps its original's key. `max_bytes` bounds an encoded record.
    """

    name: str
    record: type[R] | None
    key: str
    retention: Retention
    single_partition: bool = False
    written_by: str
    read_by: str
    key_of: Callable[[R], str] | None = None
    max_bytes: int = MAX_RECORD_BYTES

    def of(self, run: str) -> str:
        """The topic's name on the cluster."""
        return f"{checked_run(run)}.{self.name}"


PROMPTS: Final = Topic(
    name="prompts", record=PromptSubmitted, key="group_id", retention="time_and_size", max_bytes=MAX_PROMPT_BYTES,
    written_by="producers", read_by="generators, trainer; producers at start, `archive`",
    key_of=lambda prompt: prompt.group_id,
)  # fmt: skip
PRODUCERS: Final = Topic(
    name="producers", record=ProducerProgress, key="producer", retention="compacted", single_partition=True,
    written_by="producers", read_by="producers, `status`; trainer with --accept-loss",
    key_of=lambda progress: progress.producer,
)  # fmt: skip
ROLLOUTS: Final = Topic(
    name="rollouts", record=RolloutGenerated, key="group_id", retention="time_and_size", max_bytes=MAX_ROLLOUT_BYTES,
    written_by="generators", read_by="scorers",
    key_of=lambda rollout: rollout.group_id,
)  # fmt: skip
SCORED: Final = Topic(
    name="scored", record=RolloutScored, key="group_id", retention="time_and_size",
    written_by="scorers, the feedback producer", read_by="trainer, `archive`",
    key_of=lambda scored: scored.rollout.group_id,
)  # fmt: skip
WEIGHTS: Final = Topic(
    name="weights", record=WeightsPublished, key="model", retention="everything", single_partition=True,
    written_by="trainer, `weights rollback`",
    read_by="every generator, without a consumer group; trainer at start, `evaluate`, `weights`, `ledger`, `status`",
    key_of=lambda published: published.model,
)  # fmt: skip
WEIGHTS_APPLIED: Final = Topic(
    name="weights-applied", record=WeightsApplied, key="generator_id", retention="compacted",
    written_by="generators", read_by="`status`",
    key_of=lambda applied: applied.generator_id,
)  # fmt: skip
LEDGER: Final = Topic(
    name="ledger", record=LedgerEntry, key="run", retention="everything", single_partition=True,
    written_by="trainer, `weights rollback`, `ledger repair`",
    read_by="producers; trainer at start, `weights`, `ledger`, `status`, `evaluate`, `archive`",
)  # fmt: skip
EVAL_PROMPTS: Final = Topic(
    name="eval-prompts", record=PromptSubmitted, key="group_id", retention="time_and_size", max_bytes=MAX_PROMPT_BYTES,
    written_by="`evaluate`", read_by="generators",
    key_of=lambda prompt: prompt.group_id,
)  # fmt: skip
EVAL_ROLLOUTS: Final = Topic(
    name="eval-rollouts", record=RolloutGenerated, key="group_id", retention="time_and_size",
    max_bytes=MAX_ROLLOUT_BYTES, written_by="generators", read_by="scorers",
    key_of=lambda rollout: rollout.group_id,
)  # fmt: skip
EVAL_SCORED: Final = Topic(
    name="eval-scored", record=RolloutScored, key="group_id", retention="time_and_size",
    written_by="scorers", read_by="`evaluate`",
    key_of=lambda scored: scored.rollout.group_id,
)  # fmt: skip
SERVE_PROMPTS: Final = Topic(
    name="serve-prompts", record=PromptSubmitted, key="group_id", retention="time_and_size", max_bytes=MAX_PROMPT_BYTES,
    written_by="`prompt`, ingest, producers that serve", read_by="generators",
    key_of=lambda prompt: prompt.group_id,
)  # fmt: skip
SERVE_ROLLOUTS: Final = Topic(
    name="serve-rollouts", record=RolloutGenerated, key="group_id", retention="time_and_size",
    max_bytes=MAX_ROLLOUT_BYTES, written_by="generators, also of what they serve over HTTP", read_by="scorers",
    key_of=lambda rollout: rollout.group_id,
)  # fmt: skip
SERVE_SCORED: Final = Topic(
    name="serve-scored", record=RolloutScored, key="group_id", retention="time",
    written_by="scorers", read_by="`prompt`, the feedback producer",
    key_of=lambda scored: scored.rollout.group_id,
)  # fmt: skip
# One partition: its offsets are the rows of the producer that poses them, in an order that a restart finds again.
INGEST_PROMPTS: Final = Topic(
    name="ingest-prompts", record=PromptSubmitted, key="group_id", retention="time_and_size", single_partition=True,
    max_bytes=MAX_INGESTED_BYTES, written_by="ingest", read_by="the producer that poses them",
    key_of=lambda prompt: prompt.group_id,
)  # fmt: skip
FEEDBACK: Final = Topic(
    name="feedback", record=FeedbackGiven, key="the target's id", retention="time",
    written_by="ingest", read_by="the feedback producer",
    key_of=lambda feedback: feedback.target[1] if feedback.target else feedback.feedback_id,
)  # fmt: skip
# A record lies on the partition of its prompt: whoever gets that partition reads how far its samples have come.
PROGRESS: Final = Topic(
    name="progress", record=TurnProgress, key="rollout_id/turn", retention="compacted_for_a_day",
    max_bytes=MAX_ROLLOUT_BYTES, written_by="generators", read_by="the generator that gets the partition next",
    key_of=lambda progress: progress.key,
)  # fmt: skip
EVAL_PROGRESS: Final = Topic(
    name="eval-progress", record=TurnProgress, key="rollout_id/turn", retention="compacted_for_a_day",
    max_bytes=MAX_ROLLOUT_BYTES, written_by="generators", read_by="the generator that gets the partition next",
    key_of=lambda progress: progress.key,
)  # fmt: skip
DEAD_LETTERS: Final[Topic[Record]] = Topic(
    name="dead-letters", record=None, key="as the original", retention="long",
    written_by="generators, scorers, trainer, producers of ingested prompts and of feedback", read_by="`dead-letters`",
)  # fmt: skip

TOPICS: Final[tuple[Topic[Any], ...]] = (
    PROMPTS, PRODUCERS, ROLLOUTS, SCORED, WEIGHTS, WEIGHTS_APPLIED, LEDGER, EVAL_PROMPTS, EVAL_ROLLOUTS, EVAL_SCORED,
    SERVE_PROMPTS, SERVE_ROLLOUTS, SERVE_SCORED, INGEST_PROMPTS, FEEDBACK, PROGRESS, EVAL_PROGRESS, DEAD_LETTERS,
)  # fmt: skip
_STREAM: Final[Topic[Record]] = Topic(
    name="rc_actor", record=None, key="instance of the actor", retention="time_and_size",
    written_by="`rc-actor`", read_by="who trains on reasoning in cycles, `rc-streams`",
)  # fmt: skip
STREAM_TOPICS: Final[tuple[Topic[Record], ...]] = tuple(
    replace(_STREAM, name=name) for name in ("rc_actor", "rc_actor_test", "rc_stats", "rc_stats_test")
)
"""Streams of `rc-actor`: JSON, a group or a step's statistics a message. A run has them if `topics create` is asked."""
RECORDS: Final[tuple[type[Record], ...]] = tuple(
    dict.fromkeys(topic.record for topic in TOPICS if topic.record is not None)
)


def topic_named(name: str) -> Topic[Any]:
    """The topic called `name` within a run; raises KeyError with the names that exist."""
    topics = (*TOPICS, *STREAM_TOPICS)
    for topic in topics:
        if topic.name == name:
            return topic
    raise KeyError(f"no topic {name!r}; there are {', '.join(topic.name for topic in topics)}")
