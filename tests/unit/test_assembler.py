"""How groups are put together, and when an incomplete one is lost."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.bus.message import Partition
from rollstream.schemas.ledger import ClosedGroup, GroupOutcome
from rollstream.schemas.prompt import PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import Status
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules
from rollstream.trainer.intake.aging import Aging, ReadUpTo, Upstream
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import DropReason, Group, LogPlace
from rollstream.trainer.intake.intake import Intake
from tests.harness.builders import NOON, a_group, a_prompt, a_rollout

PROMPTS: Partition = ("demo.prompts", 0)
SCORED: Partition = ("demo.scored", 0)


def an_assembler(*, closed: tuple[ClosedGroup, ...] = (), incomplete_bytes: int = 10**9) -> Assembler:
    return Assembler(
        closed=[group.group_id for group in closed], offsets={PROMPTS: 0, SCORED: 0}, incomplete_bytes=incomplete_bytes
    )


def feed(assembler: Assembler, *records: PromptSubmitted | RolloutScored, first: int = 0) -> None:
    """Prompts and samples, each at the next offset of its topic."""
    for offset, record in enumerate(records, start=first):
        if isinstance(record, PromptSubmitted):
            assembler.add_prompt(record, LogPlace(PROMPTS, offset))
        else:
            assembler.add_sample(record, LogPlace(SCORED, offset), num_bytes=1000)


def dropped(assembler: Assembler) -> dict[str, str]:
    return {drop.group.group_id: drop.reason.value for drop in assembler.take_drops(100)}


def test_a_group_is_complete_when_its_last_sample_arrives_whatever_the_order_and_status() -> None:
    prompt = a_prompt(group_size=3)
    samples = [a_rollout(1.0, 2, prompt=prompt), a_rollout(None, 0, prompt=prompt), a_rollout(0.0, 1, prompt=prompt)]
    assembler = an_assembler()
    feed(assembler, samples[0], prompt, samples[1])
    assert assembler.take_completed() == []
    feed(assembler, samples[2], first=3)
    (group,) = assembler.take_completed()
    assert [sample.scored.rollout.sample_index for sample in group.in_order()] == [0, 1, 2]
    assert assembler.take_completed() == []


def test_until_the_group_closes_a_completed_attempt_beats_others_and_else_the_first_wins() -> None:
    prompt = a_prompt(group_size=2)
    unresolved = a_rollout(None, 0, prompt=prompt, attempt_id="first")
    completed = a_rollout(1.0, 0, prompt=prompt, attempt_id="second")
    again = a_rollout(0.5, 0, prompt=prompt, attempt_id="third")
    assembler = an_assembler()
    feed(assembler, unresolved, a_rollout(0.0, 1, prompt=prompt))
    (group,) = assembler.take_completed()
    feed(assembler, completed, again, unresolved, first=2)
    assert group.samples[0].scored.rollout.attempt_id == "second"
    assert assembler.num_duplicates == 2
    assert assembler.incomplete_bytes == 0


@pytest.mark.parametrize(
    "differing", [{"prompt": a_prompt(group_size=2, reference_answer="another")}, {"group_size": 3}]
)
def test_samples_that_disagree_on_the_prompt_or_group_size_drop_the_group_as_conflict(
    differing: dict[str, Any],
) -> None:
    prompt = a_prompt(group_size=2)
    assembler = an_assembler()
    feed(assembler, a_rollout(1.0, 0, prompt=prompt), a_rollout(1.0, 1, **{"prompt": prompt, **differing}))
    assert dropped(assembler) == {prompt.group_id: DropReason.CONFLICT}


def test_a_prompt_resubmitted_by_another_producer_at_another_time_is_the_same_group() -> None:
    prompt = a_prompt(group_size=2)
    again = prompt.model_copy(update={"producer": "producer-1", "sequence": 99})
    assembler = an_assembler()
    feed(assembler, prompt, again, *a_group([0.0, 1.0], prompt=prompt))
    assert len(assembler.take_completed()) == 1
    assert dropped(assembler) == {}


def test_a_prompt_that_is_not_for_training_closes_and_its_samples_are_passed_over() -> None:
    prompt = a_prompt(purpose=Purpose.SERVE, group_size=2)
    assembler = an_assembler()
    feed(assembler, prompt, *a_group([0.0, 1.0], prompt=prompt))
    assert dropped(assembler) == {prompt.group_id: DropReason.NOT_FOR_TRAINING}
    assert assembler.num_duplicates == 0
    assert assembler.num_open == 0


def test_records_of_a_group_that_is_closed_on_the_surviving_branch_are_duplicates() -> None:
    prompt = a_prompt(group_size=2)
    closed = ClosedGroup(group_id=prompt.group_id, outcome=GroupOutcome.TRAINED)
    assembler = an_assembler(closed=(closed,))
    feed(assembler, prompt, *a_group([0.0, 1.0], prompt=prompt))
    assert assembler.num_duplicates == 3
    assert assembler.take_completed() == []
    assert assembler.offsets() == {PROMPTS: 1, SCORED: 3}


def test_a_record_as_old_as_groups_that_are_forgotten_closes_as_expired_unless_its_group_is_open() -> None:
    old, young = a_prompt(1, group_size=2), a_prompt(2, group_size=2, submitted_at=NOON + timedelta(seconds=1))
    assembler = Assembler(
        closed=(), offsets={}, incomplete_bytes=10**9, is_forgotten=lambda submitted_at: submitted_at <= NOON
    )
    expected = a_prompt(3, group_size=2)
    assembler.expect([expected.group_id])
    feed(assembler, *a_group([0.0, 1.0], prompt=old), old, young, *a_group([0.0, 1.0], prompt=expected))
    assert dropped(assembler) == {old.group_id: DropReason.EXPIRED}
    assert assembler.open_group_ids() == (expected.group_id, young.group_id)


def test_a_group_that_the_ledger_names_needs_no_memory_of_its_own() -> None:
    prompt, ledger = a_prompt(group_size=2), set[str]()
    assembler = Assembler(closed=ledger, offsets={}, incomplete_bytes=10**9)
    feed(assembler, *a_group([0.0, 1.0], prompt=prompt))
    assembler.drop(prompt.group_id, DropReason.NO_SPREAD)
    assert assembler.is_closed(prompt.group_id)
    ledger.add(prompt.group_id)
    assembler.committed([prompt.group_id])
    assert assembler.is_closed(prompt.group_id)
    ledger.clear()  # as after a long time
    assert not assembler.is_closed(prompt.group_id)


def test_the_oldest_incomplete_group_goes_when_incomplete_samples_take_too_much_memory() -> None:
    first, second, complete = (a_prompt(row, group_size=2) for row in (1, 2, 3))
    assembler = an_assembler(incomplete_bytes=1500)
    feed(assembler, *a_group([0.0, 1.0], prompt=complete), first, a_rollout(1.0, 0, prompt=first))
    assert dropped(assembler) == {}
    feed(assembler, a_rollout(1.0, 0, prompt=second), first=4)
    assert dropped(assembler) == {first.group_id: DropReason.OVERFLOW}
    assert assembler.incomplete_bytes == 1000


def test_an_expected_group_is_complete_by_what_its_samples_say() -> None:
    prompt = a_prompt(group_size=2)
    assembler = an_assembler()
    assembler.expect([prompt.group_id, "never-seen"])
    assert [group.group_id for group in assembler.incomplete] == [prompt.group_id, "never-seen"]
    feed(assembler, *a_group([0.0, 1.0], prompt=prompt))
    assert [group.group_id for group in assembler.take_completed()] == [prompt.group_id]


def test_a_failed_sample_does_not_replace_an_unresolved_one() -> None:
    prompt = a_prompt(group_size=1)
    assembler = an_assembler()
    feed(assembler, a_rollout(None, 0, prompt=prompt, attempt_id="first"))
    (group,) = assembler.take_completed()
    feed(assembler, a_rollout(None, 0, prompt=prompt, status=Status.FAILED, attempt_id="second"), first=1)
    assert group.samples[0].scored.rollout.attempt_id == "first"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"group_size": 10**12}, "failed"),
        ({"group_size": 1024, "reference_answer": "x" * 5_900_000}, "failed"),
        ({"sampling": Sampling(max_tokens=2**62)}, "failed"),
        ({"sampling": Sampling(temperature=1e-300)}, "unsupported_sampling"),
    ],
)
def test_a_group_whose_prompt_is_out_of_bounds_closes_at_once(fields: dict[str, Any], reason: str) -> None:
    prompt = a_prompt(**fields)
    for first in (prompt, a_rollout(1.0, prompt=prompt)):
        assembler = an_assembler()
        feed(assembler, first)
        assert dropped(assembler) == {prompt.group_id: reason}
        assert assembler.num_open == 0


GRACE = 60.0


def an_intake_that_lacks_a_sample(*, expired_before: dict[Partition, int] | None = None) -> Intake:
    prompt = a_prompt(group_size=2)
    assembler = Assembler(closed=(), offsets={}, incomplete_bytes=10**9)
    intake = Intake(assembler, Aging(GRACE), AdmissionRules(max_policy_lag=4), expired_before=expired_before or {})
    assembler.add_prompt(prompt, LogPlace(("demo.prompts", 0), 7))
    assembler.add_sample(a_group([0.0, 1.0], prompt=prompt)[0], LogPlace(("demo.scored", 0), 0), 10)
    return intake


ALL_DONE = Upstream(
    prompts_end={0: 8}, prompts_done={0: 8}, rollouts_end={0: 5}, rollouts_done={0: 5}, scored_end={0: 5}
)
ALL_READ = ReadUpTo(prompts={0: 8}, scored={0: 5})


def aged(
    intake: Intake, upstream: Upstream, seconds: int, *, read: ReadUpTo = ALL_READ, is_fresh: bool = True
) -> list[str]:
    """Reasons of the groups that are dropped within so many seconds of polling every second."""
    for second in range(seconds + 1):
        intake.tick(float(second), is_fresh=is_fresh)
        intake.give_up_lost(upstream, read)
    return [drop.reason.value for drop in intake.assembler.take_drops(100)]


def test_a_group_is_lost_after_the_grace_once_every_stage_is_done_with_it() -> None:
    assert aged(an_intake_that_lacks_a_sample(), ALL_DONE, 59) == []
    assert aged(an_intake_that_lacks_a_sample(), ALL_DONE, 60) == ["lost"]


def test_a_group_is_lost_under_traffic_that_never_lets_the_trainer_see_an_end() -> None:
    intake = an_intake_that_lacks_a_sample()
    for second in range(63):
        end = 30 * second
        intake.tick(float(second), is_fresh=True)
        upstream = replace(ALL_DONE, rollouts_end={0: end}, rollouts_done={0: end - 20}, scored_end={0: end})
        intake.give_up_lost(upstream, ReadUpTo(prompts={0: 8}, scored={0: end - 15}))
    assert [drop.reason.value for drop in intake.assembler.take_drops(100)] == ["lost"]


@pytest.mark.parametrize(
    ("upstream", "is_fresh"),
    [
        (replace(ALL_DONE, prompts_done={0: 7}), True),
        (replace(ALL_DONE, rollouts_done={0: 4}), True),
        (ALL_DONE, False),
    ],
    ids=["its prompt is not committed", "scorers are behind", "no broker answers"],
)
def test_a_group_is_not_lost_while_a_stage_may_still_bring_it(upstream: Upstream, is_fresh: bool) -> None:
    assert aged(an_intake_that_lacks_a_sample(), upstream, 600, is_fresh=is_fresh) == []


def test_ends_of_rollouts_that_were_made_anew_meanwhile_hold_no_group_back() -> None:
    """The topic before ended at 40; the one that is there now may never be so long."""
    intake = an_intake_that_lacks_a_sample()
    old = replace(ALL_DONE, rollouts_end={0: 40}, rollouts_done={0: 30}, rollouts_id="old")
    assert aged(intake, old, 600) == []
    assert aged(intake, replace(ALL_DONE, rollouts_id="new"), 60) == ["lost"]


def test_what_the_scorers_did_on_rollouts_that_were_deleted_begins_no_grace() -> None:
    intake = an_intake_that_lacks_a_sample()
    assert aged(intake, replace(ALL_DONE, rollouts_id="old"), 59) == []
    behind = replace(ALL_DONE, rollouts_done={0: 4}, rollouts_id="new")
    assert aged(intake, behind, 600) == []


def test_a_group_is_not_lost_while_the_trainer_has_not_read_what_was_noted() -> None:
    behind = ReadUpTo(prompts={0: 8}, scored={0: 4})
    intake = an_intake_that_lacks_a_sample()
    assert aged(intake, ALL_DONE, 600, read=behind) == []
    intake.give_up_lost(replace(ALL_DONE, scored_end={0: 1000}), ALL_READ)
    assert len(intake.assembler.take_drops(100)) == 1, "what came after the noted end need not be read"


def test_a_trainer_that_was_stopped_for_an_hour_drops_nothing() -> None:
    intake = an_intake_that_lacks_a_sample()
    for moment in (0.0, 1.0, 3600.0, 3601.0):
        intake.tick(moment, is_fresh=True)
        intake.give_up_lost(ALL_DONE, ALL_READ)
    assert intake.assembler.take_drops(100) == ()


def test_a_trainer_that_polls_once_between_two_long_steps_gives_groups_up_all_the_same() -> None:
    intake = an_intake_that_lacks_a_sample()
    for step in range(12):
        intake.tick(step * 100.0, is_fresh=True)
        intake.give_up_lost(ALL_DONE, ALL_READ)
    assert [drop.reason.value for drop in intake.assembler.take_drops(100)] == ["lost"]


def test_a_complete_group_has_no_deadline() -> None:
    prompt = a_prompt(group_size=2)
    intake = Intake(
        Assembler(closed=(), offsets={}, incomplete_bytes=10**9), Aging(GRACE), AdmissionRules(max_policy_lag=4),
        expired_before={},
    )  # fmt: skip
    intake.assembler.add_prompt(prompt, LogPlace(("demo.prompts", 0), 7))
    for offset, sample in enumerate(a_group([0.0, 1.0], prompt=prompt)):
        intake.assembler.add_sample(sample, LogPlace(("demo.scored", 0), offset), 10)
    intake.settle(lambda version: 0)
    assert aged(intake, ALL_DONE, 3600) == []
    assert intake.batch(1, lambda version: 0) is not None


def test_after_an_accepted_loss_the_groups_of_before_close_as_expired() -> None:
    intake = an_intake_that_lacks_a_sample(expired_before={("demo.prompts", 0): 8})
    intake.assembler.expect(["a-group-whose-prompt-expired"])
    assert aged(intake, ALL_DONE, 61) == ["expired", "expired"]


def test_a_group_without_a_prompt_is_not_lost_while_prompts_are_unread() -> None:
    intake = an_intake_that_lacks_a_sample()
    intake.assembler.expect(["a-group-whose-prompt-may-come"])
    assert aged(intake, ALL_DONE, 600, read=ReadUpTo(prompts={0: 7}, scored={0: 5})) == ["lost"]


NUM_GROUPS = 5
LOSSY = {1, 3}
"""Of these groups one sample never reaches `scored`."""
STAGES = ("generate", "commit_prompts", "score", "commit_rollouts", "read_one", "ask", "age")


@dataclass
class Stages:
    """Generators, scorers and a trainer that each go on whenever the schedule says so; one partition a topic.

    Prompt n is that of group n. A group's two samples are scored one after the other.
    """

    generated: int = 0
    prompts_done: int = 0
    rollouts: list[tuple[int, int]] = field(default_factory=list)
    handled: int = 0
    rollouts_done: int = 0
    scored: list[tuple[int, int]] = field(default_factory=list)
    read: int = 0
    moments: int = 0
    answers: dict[str, dict[int, int]] = field(default_factory=dict)
    latest: Upstream = field(default_factory=Upstream)
    aging: Aging = field(default_factory=lambda: Aging(3.0))
    lost: set[int] = field(default_factory=set)

    def generate(self) -> None:
        if self.generated < NUM_GROUPS:
            self.rollouts += [(self.generated, 0), (self.generated, 1)]
            self.generated += 1

    def commit_prompts(self) -> None:
        self.prompts_done = self.generated

    def score(self) -> None:
        if self.handled < len(self.rollouts):
            group, index = self.rollouts[self.handled]
            if not (group in LOSSY and index == 1):
                self.scored.append((group, index))
            self.handled += 1

    def commit_rollouts(self) -> None:
        self.rollouts_done = self.handled

    def read_one(self) -> None:
        self.read = min(self.read + 1, len(self.scored))

    def ask(self) -> None:
        """The next question; the other stages may go on between two of them."""
        questions = {
            "prompts_done": self.prompts_done,
            "rollouts_end": len(self.rollouts),
            "rollouts_done": self.rollouts_done,
            "scored_end": len(self.scored),
        }
        name = list(questions)[len(self.answers)]
        self.answers[name] = {0: questions[name]}
        if len(self.answers) == len(questions):
            self.latest = Upstream(prompts_end={0: NUM_GROUPS}, **self.answers)
            self.answers = {}

    def age(self) -> None:
        self.moments += 1
        self.aging.tick(float(self.moments), is_fresh=True)
        read = ReadUpTo(prompts={0: NUM_GROUPS}, scored={0: self.read})
        incomplete = self.incomplete()
        self.aging.observe(self.latest, incomplete, read)
        self.lost |= {int(group.group_id) for group in self.aging.lost(incomplete, read)}

    def incomplete(self) -> list[Group]:
        samples = Counter(group for group, _ in self.scored[: self.read])
        return [
            Group(group_id=str(n), content_hash="", group_size=2, prompt_place=LogPlace(("demo.prompts", 0), n))
            for n in range(NUM_GROUPS)
            if samples[n] < 2
        ]


@given(schedule=st.lists(st.sampled_from(STAGES), max_size=200))
def test_whatever_stands_still_and_for_how_long_only_groups_whose_samples_never_come_are_lost(
    schedule: list[str],
) -> None:
    stages = Stages()
    for stage in schedule:
        getattr(stages, stage)()
        assert stages.lost <= LOSSY
    for _ in range(40):  # enough for every stage to end its work, and for the grace
        for stage in STAGES:
            getattr(stages, stage)()
    assert stages.lost == LOSSY
