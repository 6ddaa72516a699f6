"""Whatever the arrival order and the duplicates: every group closes once, and no checkpoint passes an open group."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, cycle

from hypothesis import given
from hypothesis import strategies as st

from rollstream.bus.message import Partition
from rollstream.schemas.ledger import ClosedGroup
from rollstream.schemas.prompt import PromptSubmitted, Purpose
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules
from rollstream.trainer.intake.aging import Aging
from rollstream.trainer.intake.assembler import Assembler
from rollstream.trainer.intake.groups import Group, LogPlace, PlacedSample
from rollstream.trainer.intake.intake import Intake, LagByLength
from tests.harness.builders import a_group, a_prompt, a_rollout, a_turn

TOPICS = {PromptSubmitted: "demo.prompts", RolloutScored: "demo.scored"}
NUM_PARTITIONS = 2
GROUPS_PER_STEP = 2
LAST_CRASH = 60
REWARDS = ([0.0, 1.0], [1.0, 1.0], [0.0, None], [None, None])

Record = PromptSubmitted | RolloutScored


def some_groups() -> list[list[Record]]:
    """Prompt and samples of groups with and without spread, failed ones, and one that is not for training."""
    groups: list[list[Record]] = []
    for row in range(6):
        purpose = Purpose.SERVE if row == 5 else Purpose.TRAIN
        prompt = a_prompt(row, group_size=2, purpose=purpose)
        groups.append([prompt, *a_group(REWARDS[row % 4], prompt=prompt)])  # type: ignore[arg-type]
    return groups


GROUPS = some_groups()
RECORDS = [record for group in GROUPS for record in group]


@dataclass
class Run:
    """A trainer without torch and Kafka: what lies in the log, and the ledger."""

    log: dict[Partition, list[Record]]
    closed: dict[str, ClosedGroup] = field(default_factory=dict)
    times_closed: Counter[str] = field(default_factory=Counter)
    offsets: dict[Partition, int] = field(default_factory=dict)
    checkpointed: tuple[dict[str, ClosedGroup], Counter[str]] = field(default_factory=lambda: ({}, Counter()))

    def start(self) -> Intake:
        """Go back to the newest checkpoint: groups closed by the entries after it are open again."""
        self.closed, self.times_closed = dict(self.checkpointed[0]), Counter(self.checkpointed[1])
        wanted = {partition: self.offsets.get(partition, 0) for partition in self.log}
        assembler = Assembler(closed=self.closed, offsets=wanted, incomplete_bytes=10**9)
        return Intake(assembler, Aging(60.0), AdmissionRules(max_policy_lag=4), expired_before={})

    def commit(self, intake: Intake, closed: tuple[ClosedGroup, ...], *, with_checkpoint: bool) -> None:
        drops = tuple(drop.closed() for drop in intake.assembler.take_drops(1000))
        for group in (*closed, *drops):
            self.closed[group.group_id] = group
            self.times_closed[group.group_id] += 1
        if with_checkpoint:
            self.offsets = intake.assembler.offsets()
            self.checkpointed = (dict(self.closed), Counter(self.times_closed))
            self.check_offsets()

    def check_offsets(self) -> None:
        """Everything before the checkpoint belongs to closed groups; the next trainer never sees it."""
        for partition, offset in self.offsets.items():
            passed = {group_of(record) for record in self.log[partition][:offset]}
            assert passed <= set(self.closed)

    def read(self, intake: Intake, partition: Partition, offset: int) -> None:
        record, place = self.log[partition][offset], LogPlace(partition, offset)
        if isinstance(record, PromptSubmitted):
            intake.assembler.add_prompt(record, place)
        else:
            intake.assembler.add_sample(record, place, num_bytes=10)
        intake.settle(lambda version: 0)


def group_of(record: Record) -> str:
    return record.group_id if isinstance(record, PromptSubmitted) else record.rollout.group_id


@given(
    order=st.permutations(range(len(RECORDS))),
    repeated=st.lists(st.integers(0, len(RECORDS) - 1), max_size=12),
    reads=st.lists(st.integers(0, 2 * NUM_PARTITIONS - 1), min_size=1, max_size=80),
    crashes=st.sets(st.integers(0, LAST_CRASH), max_size=3),
)
def test_every_group_closes_exactly_once_and_checkpoints_never_pass_an_open_one(
    order: list[int], repeated: list[int], reads: list[int], crashes: set[int]
) -> None:
    log: dict[Partition, list[Record]] = {(topic, n): [] for topic in TOPICS.values() for n in range(NUM_PARTITIONS)}
    for index in (*order, *repeated):
        record = RECORDS[index]
        log[TOPICS[type(record)], int(group_of(record), 16) % NUM_PARTITIONS].append(record)
    run = Run(log)
    intake, positions = run.start(), dict.fromkeys(log, 0)
    for turn, choice in enumerate(chain(reads, cycle(range(len(log))))):
        if turn in crashes:
            intake = run.start()
            positions = {partition: run.offsets.get(partition, 0) for partition in log}
        partition = sorted(log)[choice]
        if positions[partition] < len(log[partition]):
            run.read(intake, partition, positions[partition])
            positions[partition] += 1
        batch = intake.batch(GROUPS_PER_STEP, lambda version: 0)
        if batch is not None:
            closed = intake.assembler.close_trained(admitted.group.group_id for admitted in batch)
            run.commit(intake, closed, with_checkpoint=turn % 3 == 0)
        elif turn % 5 == 0:
            run.commit(intake, (), with_checkpoint=False)
        if turn > LAST_CRASH and all(positions[partition] == len(log[partition]) for partition in log):
            break
    run.commit(intake, (), with_checkpoint=True)
    waiting = set(intake.assembler.open_group_ids())
    assert set(run.times_closed) | waiting == {group_of(record) for record in RECORDS}
    assert not set(run.times_closed) & waiting
    assert set(run.times_closed.values()) == {1}
    assert len(waiting) < GROUPS_PER_STEP


def a_group_of_length(num_tokens: int) -> Group:
    turn = a_turn(range(num_tokens))
    sample = PlacedSample(scored=a_rollout(turns=(turn,)), place=LogPlace(("demo.scored", 0), 0), num_bytes=10)
    return Group(group_id="group", content_hash="", group_size=1, samples={0: sample})


def test_groups_too_old_are_counted_by_quartile_of_length() -> None:
    lengths = LagByLength()
    for length in (4, 5, 6, 7, 8, 9, 10, 11):
        lengths.note(a_group_of_length(length))
    lengths.note_too_old(a_group_of_length(4))
    lengths.note_too_old(a_group_of_length(40))
    assert lengths.take() == {
        "too_old_length_quartile/1": 1.0,
        "too_old_length_quartile/2": 0.0,
        "too_old_length_quartile/3": 0.0,
        "too_old_length_quartile/4": 1.0,
    }
    assert lengths.take() == {}
