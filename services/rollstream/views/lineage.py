"""What `rollstream lineage` shows of a rollout or a step: its records from all topics, as lines of text."""

from collections.abc import Iterable, Iterator
from typing import Final

from rollstream.bus.message import KafkaMessage
from rollstream.bus.places import MessagePlace
from rollstream.bus.run import Run
from rollstream.history.ledger import surviving
from rollstream.history.lineage import (
    FoundRecord,
    RolloutStory,
    StepStory,
    surviving_step,
    trace_rollout,
    trace_step,
)
from rollstream.history.passing import read_entries, read_versions
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_of
from rollstream.schemas.ledger import LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.record import Record
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import (
    EVAL_PROMPTS,
    EVAL_ROLLOUTS,
    EVAL_SCORED,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    SERVE_PROMPTS,
    SERVE_ROLLOUTS,
    SERVE_SCORED,
)
from rollstream.views.reading import Decoder
from rollstream.views.rendering import answer, one_line, quoted, versions

_UNKNOWN_LAG = "lag unknown"
_OF_A_GROUP: Final = (
    PROMPTS, ROLLOUTS, SCORED, EVAL_PROMPTS, EVAL_ROLLOUTS, EVAL_SCORED, SERVE_PROMPTS, SERVE_ROLLOUTS, SERVE_SCORED,
)  # fmt: skip


def read_rollout(run: Run, rollout_id: str) -> RolloutStory:
    """All records about a rollout; raises `ConfigurationError` if no topic has one."""
    key = group_of(rollout_id).encode()
    with run.reader(*_OF_A_GROUP) as reader:
        # Compared by key first, because decoding costs much more: most records belong to other groups.
        found = list(_found(run, (message for message in reader.to_end() if message.key == key)))
    entries = read_entries(run)
    story = trace_rollout(
        rollout_id, found=found, entries=entries, survivors=surviving(entries), versions=read_versions(run, entries)
    )
    if not (story.attempts or story.scored or story.trained or story.cut_steps):
        raise ConfigurationError(
            f"no topic of run {run.name} knows rollout {rollout_id}: `rollstream tail scored` shows ids; "
            "records older than the topics' retention are gone"
        )
    return story


def read_step(run: Run, number: int) -> StepStory:
    """All records about a step; raises `ConfigurationError` if the surviving branch has no such step."""
    entries = read_entries(run)
    survivors = surviving(entries)
    step = surviving_step(number, survivors)
    if step is None:
        raise ConfigurationError(f"run {run.name} has no surviving step {number}: it has come to step {survivors.step}")
    found = list(_found(run, _messages_of(run, step)))
    return trace_step(step, found=found, entries=entries, survivors=survivors, versions=read_versions(run, entries))


def _messages_of(run: Run, step: LedgerEntry) -> Iterator[KafkaMessage]:
    """What the step trained on, from `scored`; what is older than the topic's retention is missing."""
    name = run.topic(SCORED)
    bounds = run.bounds(SCORED)
    with run.place_reader() as reader:
        for partition, offset in sorted((trained.partition, trained.offset) for trained in step.trained):
            first, end = bounds.get((name, partition), (0, 0))
            message = reader.message_at(MessagePlace(name, partition, offset)) if first <= offset < end else None
            if message is not None:
                yield message


def _found(run: Run, messages: Iterable[KafkaMessage]) -> Iterator[FoundRecord[Record]]:
    decoder = Decoder(run)
    for message in messages:
        record = decoder.decode(message).record
        if record is not None:
            yield FoundRecord(topic=message.topic, partition=message.partition, offset=message.offset, record=record)


def rollout_lines(story: RolloutStory) -> Iterator[str]:
    """The lines about a rollout, from its prompt to the weight version that was trained on it."""
    yield f"rollout {story.rollout_id}"
    yield from _prompt_lines(story.prompt)
    if not story.attempts:
        yield "attempts   none in the topics (older than their retention?)"
    for attempt in story.attempts:
        yield from _attempt_lines(attempt)
    if not story.scored:
        yield "scored     not yet, or older than the topic's retention"
    for scored in story.scored:
        yield from _scored_lines(scored)
    yield from _outcome_lines(story)


def step_lines(story: StepStory) -> Iterator[str]:
    """The lines about a step: its version, and each rollout that it trained on."""
    yield f"step {one_line(story.step).removeprefix('step ')}"
    yield f"trainer    incarnation {story.step.incarnation}, finished {story.step.finished_at.isoformat()}"
    yield f"version    {'not on the topic' if story.version is None else one_line(story.version)}"
    for entry in story.cut_steps:
        yield f"cut        version {entry.weight_version} of incarnation {entry.incarnation} does not count"
    for trained, record, lag in story.rollouts:
        place = f"{trained.partition}/{trained.offset}"
        late = _UNKNOWN_LAG if lag is None else f"lag {lag}"
        if record is None:
            yield f"rollout    {trained.rollout_id} at scored {place}: older than the topic's retention"
        else:
            yield f"rollout    {one_line(record)}, {late}, at scored {place}"


def _prompt_lines(prompt: FoundRecord[PromptSubmitted] | None) -> Iterator[str]:
    if prompt is None:
        yield "prompt     not in the topics (older than their retention?)"
        return
    record = prompt.record
    asked = quoted(record.messages[-1].content) if record.messages else "no message"
    yield f"prompt     {record.prompt_id} {record.purpose.value}, {record.environment or 'no environment'}: {asked}"
    yield f"           {record.group_size} samples, by {record.producer or 'an outside client'} #{record.sequence}"
    yield _place(prompt)


def _attempt_lines(attempt: FoundRecord[RolloutGenerated]) -> Iterator[str]:
    record = attempt.record
    generator = record.generator
    seconds = (record.finished_at - record.started_at).total_seconds()
    yield f"attempt    {record.attempt_id} {record.status.value} in {seconds:.2f} s: {answer(record)}"
    yield f"           by {generator.generator_id}, {generator.engine} {generator.engine_version} on {generator.host}"
    for number, turn in enumerate(record.turns):
        spans = ", ".join(f"v{span.weight_version} [{span.start}, {span.end})" for span in turn.weight_spans)
        tokens = f"{len(turn.token_ids)} tokens, {spans or 'no spans'}"
        yield f"           turn {number}: {tokens}, {turn.finish_reason.value}"
    yield _place(attempt)


def _scored_lines(scored: FoundRecord[RolloutScored]) -> Iterator[str]:
    scoring = scored.record.scoring
    reward = "no reward" if scoring.reward is None else f"reward {scoring.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in scoring.components.items())
    why = f" {scoring.failure}" if scoring.failure else ""
    yield f"scored     {reward} ({parts or scoring.status.value}){why}, attempt {scored.record.rollout.attempt_id}"
    yield f"           by {scoring.scorer} {scoring.scorer_version}, {versions(scored.record.rollout)}"
    yield _place(scored)


def _outcome_lines(story: RolloutStory) -> Iterator[str]:
    for entry in story.cut_steps:
        yield f"cut        step {entry.step} of incarnation {entry.incarnation} trained on it and does not count"
    if story.trained is not None and story.step is not None:
        late = _UNKNOWN_LAG if story.policy_lag is None else f"lag {story.policy_lag}"
        yield f"trained    step {story.step.step}, attempt {story.trained.attempt_id}, {late}"
        made = f"version {story.step.weight_version}" if story.version is None else one_line(story.version)
        yield f"version    {made}"
    elif story.closed is None:
        yield "group      still open"
    elif story.closing_entry is not None:
        reason = f" as {story.closed.reason}" if story.closed.reason else ", this sample not among the trained"
        yield f"group      {story.closed.outcome.value}{reason}, after step {story.closing_entry.step}"


def _place(found: FoundRecord[Record]) -> str:
    return f"           at {found.topic} {found.partition}/{found.offset}"
