"""What became of the samples of a campaign upon agents, by what was published and by what others noted. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollstream.schemas.rollout import RolloutGenerated, Status, Turn
from tests.hostile.counting_generator import AT_ONCE, expected_tokens
from tests.hostile.session_server import Event, open_sessions

MOST_LOST: Final = 0.05
"""Of the tokens that were sampled, those that are in no published sample."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The figures, and what is wrong."""

    num_samples: int
    num_records: int
    num_sampled: int
    """Tokens."""
    num_lost: int
    """Tokens."""
    num_mutations: int
    num_calls: int
    """Of the published samples."""
    tools: Mapping[str, int]
    """How often the server of tools did what."""
    num_late: int = 0
    """Keys of progress that a suspended process sent behind their deletion: they expire."""
    problems: tuple[str, ...]


def account_of(
    agents: Mapping[str, str],
    records: Sequence[RolloutGenerated],
    sampled: Set[str],
    done: Sequence[Event],
    left: Sequence[str],
) -> Account:
    """`agents`: of each sample that was asked for, by rollout_id. `left`: what is kept of samples that are done.

    `sampled`: every part of an answer that an engine sampled, `AT_ONCE` digits each, no two alike.
    """
    completed: defaultdict[str, list[RolloutGenerated]] = defaultdict(list)
    for record in records:
        if record.status is Status.COMPLETED:
            completed[record.rollout_id].append(record)
    # As a trainer has it: the first completed attempt counts.
    counted = {rollout: found[0] for rollout, found in completed.items()}
    parts = {part for record in counted.values() for turn in record.turns for part in _parts(turn)}
    mutations = [(event.session, event.key) for event in done if event.kind == "added"]
    calls = [(rollout, key) for rollout, record in counted.items() for key in _calls(record)]
    lost = AT_ONCE * len(sampled - parts)
    problems = [
        *_some("samples without a completed record", [_why(rollout, records) for rollout in agents.keys() - counted]),
        *_some("samples published with other calls", _unlike(completed)),
        *_some("turns that are not well formed", [why for each in counted.values() for why in _bad(each, agents)]),
        *_some("published parts that no engine sampled", sorted(parts - sampled)),
        *_some("mutations that no published sample asked for", list((Counter(mutations) - Counter(calls)).elements())),
        *_some("calls that changed nothing", list((Counter(calls) - Counter(mutations)).elements())),
        *_some("sessions that are open", sorted(open_sessions(done))),
        *_some("keys of progress that are left", left),
    ]
    if lost > MOST_LOST * AT_ONCE * len(sampled):
        problems.append(f"{lost} of {AT_ONCE * len(sampled)} sampled tokens are in no published sample")
    return Account(
        num_samples=len(counted),
        num_records=len(records),
        num_sampled=AT_ONCE * len(sampled),
        num_lost=lost,
        num_mutations=len(mutations),
        num_calls=len(calls),
        tools=Counter(event.kind for event in done),
        problems=tuple(problems),
    )


def sampled_parts(file: Path) -> frozenset[str]:
    """The parts that engines noted in a file."""
    return frozenset(line.partition(" ")[2] for line in file.read_text().splitlines())


def _parts(turn: Turn) -> Iterator[str]:
    """The turn's sampled tokens as the engine noted them."""
    digits = turn.token_ids.astype("uint8").tobytes().decode()
    return (digits[start : start + AT_ONCE] for start in range(0, len(digits), AT_ONCE))


def _calls(record: RolloutGenerated) -> list[str]:
    return [answer.call_id for turn in record.turns for answer in turn.tool_answers]


def _unlike(completed: Mapping[str, Sequence[RolloutGenerated]]) -> list[str]:
    return [
        rollout for rollout, found in completed.items() if any(_calls(one) != _calls(found[0]) for one in found[1:])
    ]


def _bad(record: RolloutGenerated, agents: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with its turns. Lengths of logprobs and spans hold for every record that can be read."""
    lengths = [len(turn.token_ids) for turn in record.turns]
    if lengths != expected_tokens(agents[record.rollout_id]):
        yield f"{record.rollout_id}: turns of {lengths} tokens"
    seen = 0
    if agents[record.rollout_id] == "reasoning_cache":
        steps = [(turn.prefix_turn, turn.turn_type, turn.turn_number, turn.cycle_step) for turn in record.turns]
        expected = [(None, ("reasoning", "summarization")[step % 2], step // 2 + 1, step) for step in range(len(steps))]
        if steps != expected:
            yield f"{record.rollout_id}: cycles of {steps}"
        return
    for number, turn in enumerate(record.turns):
        if (turn.prefix_turn, turn.prefix_tokens) != (number - 1 if number else None, seen):
            yield f"{record.rollout_id}: turn {number} extends {turn.prefix_tokens} of turn {turn.prefix_turn}"
        seen += len(turn.prompt_token_ids) + len(turn.token_ids)
        answers, expected = [answer.content for answer in turn.tool_answers], f'{{"total": {number + 1}}}'
        if answers != [expected][: len(record.turns) - 1 - number]:
            yield f"{record.rollout_id}: turn {number} was answered {answers}"


def _why(rollout: str, records: Sequence[RolloutGenerated]) -> str:
    ends = [(one.status.value, one.failure and one.failure.message) for one in records if one.rollout_id == rollout]
    return f"{rollout}: {ends}"


def _some(what: str, found: Sequence[object]) -> Iterator[str]:
    if found:
        yield f"{len(found)} {what}, e.g. {', '.join(map(str, found[:_SHOWN]))}"
