"""What became of a rollout, and what went into a step, put together from records."""

from rollstream.history.ledger import surviving
from rollstream.history.lineage import FoundRecord, RolloutStory, surviving_step, trace_rollout, trace_step
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.schemas.record import Record
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.views.lineage import rollout_lines, step_lines
from tests.harness.builders import a_failure, a_generated, a_prompt, a_rollout, a_trained, a_turn, an_entry, published

PROMPT = a_prompt(group_size=2)
START = an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None)


def test_a_trained_rollout_leads_from_prompt_to_version_with_its_lag() -> None:
    scored = _sample(0, version=0)
    entries = [START, _step(1, [a_rollout(0.0, 1, prompt=PROMPT)], close="elsewhere"), _step(2, [scored])]
    story = _story(scored, entries)
    assert story.prompt is not None
    assert story.prompt.record == PROMPT
    assert story.trained == entries[2].trained[0]
    assert story.step == entries[2]
    assert story.version == published(2)
    assert story.policy_lag == 1
    assert story.closed is not None
    assert story.closing_entry == entries[2]


def test_every_attempt_is_shown_in_order_of_arrival() -> None:
    died = a_failure("engine died")
    failed = a_generated(0, prompt=PROMPT, attempt_id="first", status=Status.UNRESOLVED, failure=died)
    scored = _sample(0)
    found = [_found("demo.rollouts", 1, failed), _found("demo.rollouts", 2, scored.rollout)]
    story = _trace(scored.rollout.rollout_id, found, [START])
    assert [attempt.record.attempt_id for attempt in story.attempts] == ["first", "attempt-0"]
    text = "\n".join(rollout_lines(story))
    assert "first unresolved" in text
    assert "engine died" in text
    assert "group      still open" in text


def test_a_step_that_a_restart_cut_is_told_but_does_not_count() -> None:
    scored = _sample(0)
    cut = _step(1, [scored])
    restart = an_entry(EntryKind.RESTART, step=0, weight_version=2, parent_version=0, incarnation="trainer-2")
    story = _story(scored, [START, cut, restart])
    assert story.trained is None
    assert story.closed is None
    assert story.cut_steps == (cut,)
    assert "does not count" in "\n".join(rollout_lines(story))


def test_a_dropped_group_says_why() -> None:
    scored = _sample(0)
    closed = (ClosedGroup(group_id=PROMPT.group_id, outcome=GroupOutcome.DROPPED, reason="no_spread"),)
    drops = an_entry(EntryKind.DROPS, step=0, weight_version=0, closed=closed)
    story = _story(scored, [START, drops])
    assert story.trained is None
    assert "group      dropped as no_spread" in "\n".join(rollout_lines(story))


def test_records_of_other_rollouts_of_the_group_are_left_out() -> None:
    mine, other = _sample(0), _sample(1)
    found = [_found("demo.scored", 0, mine), _found("demo.scored", 1, other)]
    story = _trace(mine.rollout.rollout_id, found, [START])
    assert [one.record for one in story.scored] == [mine]


def test_what_retention_deleted_is_said_to_be_missing() -> None:
    scored = _sample(0)
    story = _trace(scored.rollout.rollout_id, [], [START, _step(1, [scored])])
    text = "\n".join(rollout_lines(story))
    assert "prompt     not in the topics" in text
    assert "attempts   none in the topics" in text
    assert "trained    step 1" in text
    assert "lag unknown" in text


def test_the_text_shows_each_station_of_a_trained_rollout() -> None:
    scored = _sample(0, spans=((0, 0, 2), (1, 2, 6)))
    entries = [START, _step(1, [], close="elsewhere"), _step(2, [scored])]
    text = "\n".join(rollout_lines(_story(scored, entries)))
    for expected in (
        "prompt     sort_digits/17 train, sort_digits: '52910='",
        "by generator-1, scripted 1 on node-1",
        "turn 0: 6 tokens, v0 [0, 2), v1 [2, 6), stop",
        "scored     reward 1 (exact_match 1)",
        "at demo.scored 0/7",
        "trained    step 2, attempt attempt-0, lag 1",
        "version    policy version 2 ← 1",
    ):
        assert expected in text, text


def test_a_step_lists_its_rollouts_with_reward_and_lag_and_says_what_is_gone() -> None:
    kept, gone = _sample(0), _sample(1)
    entries = [START, _step(1, [kept, gone])]
    survivors = surviving(entries)
    step = surviving_step(1, survivors)
    assert step is not None
    found = [_found("demo.scored", entries[1].trained[0].offset, kept)]
    story = trace_step(step, found=found, entries=entries, survivors=survivors, versions=[published(1)])
    assert [(trained.rollout_id, record, lag) for trained, record, lag in story.rollouts] == [
        (kept.rollout.rollout_id, kept, 0),
        (gone.rollout.rollout_id, None, None),
    ]
    text = "\n".join(step_lines(story))
    assert "reward 1" in text
    assert "older than the topic's retention" in text


def test_a_step_number_means_its_surviving_entry() -> None:
    first = _step(1, [_sample(0)])
    restart = an_entry(EntryKind.RESTART, step=0, weight_version=2, parent_version=0, incarnation="trainer-2")
    second = an_entry(step=1, weight_version=3, parent_version=2, incarnation="trainer-2")
    entries = [START, first, restart, second]
    survivors = surviving(entries)
    assert surviving_step(1, survivors) == second
    assert surviving_step(2, survivors) is None
    story = trace_step(second, found=[], entries=entries, survivors=survivors, versions=[])
    assert story.cut_steps == (first,)


def _sample(index: int, *, version: int = 0, spans: tuple[tuple[int, int, int], ...] | None = None) -> RolloutScored:
    return a_rollout(1.0, index, prompt=PROMPT, turns=(a_turn(spans=spans or ((version, 0, 6),)),))


def _step(number: int, rollouts: list[RolloutScored], *, close: str = PROMPT.group_id) -> LedgerEntry:
    return an_entry(
        step=number,
        weight_version=number,
        parent_version=number - 1,
        trained=tuple(a_trained(rollout, offset=7 + index) for index, rollout in enumerate(rollouts)),
        closed=(ClosedGroup(group_id=close, outcome=GroupOutcome.TRAINED),),
    )


def _found(topic: str, offset: int, record: Record) -> FoundRecord[Record]:
    return FoundRecord(topic=topic, partition=0, offset=offset, record=record)


def _story(scored: RolloutScored, entries: list[LedgerEntry]) -> RolloutStory:
    found = [
        _found("demo.prompts", 3, PROMPT),
        _found("demo.rollouts", 5, scored.rollout),
        _found("demo.scored", 7, scored),
    ]
    return _trace(scored.rollout.rollout_id, found, entries)


def _trace(rollout_id: str, found: list[FoundRecord[Record]], entries: list[LedgerEntry]) -> RolloutStory:
    return trace_rollout(
        rollout_id,
        found=found,
        entries=entries,
        survivors=surviving(entries),
        versions=[published(number) for number in range(4)],
    )
