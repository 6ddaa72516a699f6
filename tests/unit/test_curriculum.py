"""Pools of tasks: what a pass poses, whatever the order of the rows; and what is noted of it."""

import random
from collections import Counter

import pytest

from rollstream.producers.curriculum import MOST_TASKS, Curriculum
from rollstream.producers.flat_groups import FlatGroups
from rollstream.producers.numbering import Pass, RowPlace, read_mark
from rollstream.producers.settings import CurriculumSettings, PoolSettings, ProducerSettings
from rollstream.schemas.bounds import MAX_CURRICULUM_BYTES
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import ClosedGroup, GroupOutcome

TASKS = [f"id {number}" for number in range(2000)]
PASS = Pass(3, 100)


def a_curriculum(tasks: list[str] = TASKS, *, seed: int = 7, **fields: object) -> Curriculum:
    return Curriculum(CurriculumSettings(**fields), tasks, seed=seed)


def judged(curriculum: Curriculum, means: dict[str, float]) -> Curriculum:
    """Each of these tasks had a group with this mean, and a pass began."""
    for task, mean in means.items():
        curriculum.expect(f"group of {task}", task)
        curriculum.note(f"group of {task}", mean)
    curriculum.begin_pass()
    return curriculum


def means_of(tasks: list[str]) -> dict[str, float]:
    return {task: (number % 3) / 2 for number, task in enumerate(tasks)}


def posed(curriculum: Curriculum, epoch: int = 4, tasks: list[str] = TASKS) -> set[str]:
    return {task for task in tasks if curriculum.is_posed(task, epoch)}


@pytest.mark.parametrize(
    ("mean", "pool"), [(-1.0, "hard"), (0.25, "hard"), (0.26, "normal"), (0.75, "normal"), (1.0, "easy"), (9.0, "easy")]
)
def test_a_task_is_in_the_first_pool_whose_bound_is_not_below_its_latest_mean(mean: float, pool: str) -> None:
    curriculum = a_curriculum(TASKS[:3])
    judged(curriculum, {TASKS[0]: 0.5})
    judged(curriculum, {TASKS[0]: mean})
    curriculum.note(f"group of {TASKS[0]}", None)
    curriculum.note("a group of somebody else", 0.5)
    assert curriculum.pool_of(TASKS[0]) == pool
    assert curriculum.sizes() == {"unseen": 2, "hard": 0, "normal": 0, "easy": 0} | {pool: 1}


def test_tasks_are_posed_as_often_as_the_weights_of_their_pools_say() -> None:
    curriculum = judged(a_curriculum(), means_of(TASKS))
    counts = Counter(curriculum.pool_of(task) for epoch in range(20) for task in posed(curriculum, epoch))
    shares = {name: counts[name] / (20 * size) for name, size in curriculum.sizes().items() if size}
    assert shares == pytest.approx({"hard": 0.2, "normal": 1.0, "easy": 0.2}, abs=0.01)
    assert posed(curriculum, 1) != posed(curriculum, 2)


@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.01])
def test_a_pass_is_never_empty_since_weights_count_only_among_pools_that_have_tasks(mean: float, weight: float) -> None:
    pools = {name: PoolSettings(up_to=up_to, weight=weight) for name, up_to in (("low", 0.2), ("high", 1.0))}
    curriculum = a_curriculum(pools=pools, unseen_weight=1.0)
    assert posed(curriculum) == set(TASKS), "all are unseen"
    assert posed(judged(curriculum, dict.fromkeys(TASKS, mean))) == set(TASKS), "all are in one pool"


def test_the_order_of_the_rows_changes_nothing() -> None:
    shuffled = random.Random(1).sample(TASKS, len(TASKS))
    one, other = a_curriculum(), a_curriculum(shuffled)
    judged(one, means_of(TASKS))
    assert not other.restore(one.state("tasks.jsonl@1", PASS), "tasks.jsonl@2", None), "another file begins a pass"
    other.begin_pass()
    assert [one.pool_of(task) for task in TASKS] == [other.pool_of(task) for task in TASKS]
    assert posed(one) == posed(other)


def test_a_pass_goes_on_with_the_pools_that_it_began_with() -> None:
    one = judged(a_curriculum(), means_of(TASKS))
    before = posed(one)
    for task in TASKS:
        one.note(f"group of {task}", 0.0)
    assert posed(one) == before
    other = a_curriculum()
    assert other.restore(one.state("a", PASS), "a", PASS)
    assert (posed(other), other.sizes()) == (before, one.sizes())
    assert other.state("a", PASS) == one.state("a", PASS)


@pytest.mark.parametrize(
    "change", [{"seed": 8}, {"unseen_weight": 0.5}, {"pools": {"one": PoolSettings(up_to=1, weight=1)}}]
)
def test_with_other_weights_or_another_seed_a_pass_begins(change: dict[str, object]) -> None:
    state = judged(a_curriculum(), means_of(TASKS)).state("a", PASS)
    assert not a_curriculum(**change).restore(state, "a", PASS)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [None, b"", b"x", bytes(16), b"\xff" * 2016, b"\x00" * MAX_CURRICULUM_BYTES])
def test_what_is_no_state_of_these_tasks_leaves_all_unseen(state: bytes | None) -> None:
    curriculum = a_curriculum()
    assert not curriculum.restore(state, "a", PASS)
    assert curriculum.sizes()["unseen"] == len(TASKS)


def test_a_state_with_a_pool_that_does_not_exist_is_no_state() -> None:
    state = a_curriculum().state("a", PASS)
    curriculum = a_curriculum()
    assert not curriculum.restore(state[:-1] + b"\x0e", "a", PASS)
    assert not curriculum.restore(state[:-1] + b"\xe0", "a", PASS)
    assert curriculum.restore(state, "a", PASS)


def test_of_more_tasks_than_the_bound_the_others_stay_unseen_and_the_state_fits_into_a_record() -> None:
    tasks = [f"id {number}" for number in range(MOST_TASKS + 500)]
    curriculum = judged(a_curriculum(tasks), dict.fromkeys(tasks, 1.0))
    assert curriculum.sizes() == {"unseen": 500, "hard": 0, "normal": 0, "easy": MOST_TASKS}
    assert len(curriculum.state("a", PASS)) == MAX_CURRICULUM_BYTES


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("3/0", (3, "0", None)),
        ("3", (3, "", None)),
        ("7/1/2/5", (7, "1", (2, 5))),
        *(
            (bad, None)
            for bad in ("", "x", "3/0/1", "3/0/x/1", "3/0/1/2/3", "-1/0", f"{'9' * 16}/0", "3/0/1/" + "9" * 16)
        ),
    ],
)
def test_a_mark_is_read_or_it_is_none(text: str, read: object) -> None:
    assert read_mark(text) == read


def test_a_place_and_its_mark_are_the_same() -> None:
    place = RowPlace(position=7, sequence=9, of_pass=Pass(2, 5))
    assert read_mark(place.next.mark(1)) == (8, "1", (2, 5))


def a_group(reason: str, mean: float | None = 1.0) -> ClosedGroup:
    outcome = GroupOutcome.DROPPED if reason else GroupOutcome.TRAINED
    return ClosedGroup(group_id="g", outcome=outcome, reason=reason, reward_mean=mean)


def test_so_many_flat_groups_in_a_row_end_a_run_with_what_they_were_and_what_to_change() -> None:
    settings = ProducerSettings(run="demo", environment="sort_digits", most_flat_groups=3)
    flat = FlatGroups(settings)
    for group in (a_group("no_spread"), a_group("no_spread"), a_group(""), a_group("no_spread"), a_group("lost")):
        flat.note(group)
    flat.note(a_group("no_spread", None))
    flat.check({})
    assert flat.num_groups == 2
    flat.note(a_group("no_spread", 0.5))
    with pytest.raises(ConfigurationError) as raised:
        flat.check({"unseen": 1, "easy": 7})
    for named in ("last 3 groups", "0.5 to 1", "0.750", "easy 7", "group_size 8", "most_flat_groups = 3"):
        assert named in str(raised.value)


@pytest.mark.parametrize(
    ("pools", "named"),
    [
        ({}, "1 to 14"),
        ({f"p{number}": PoolSettings(up_to=number, weight=1) for number in range(15)}, "15 pools"),
        ({"unseen": PoolSettings(up_to=1, weight=1)}, "not unseen"),
        ({"a": PoolSettings(up_to=1, weight=1), "b": PoolSettings(up_to=1, weight=2)}, "same up_to"),
        ({"A pool": PoolSettings(up_to=1, weight=1)}, "no pool is called 'A pool'"),
    ],
)
def test_pools_that_could_not_be_told_apart_are_refused(pools: dict[str, PoolSettings], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CurriculumSettings(pools=pools)
