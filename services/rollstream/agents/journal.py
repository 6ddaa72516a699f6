"""What is kept of a sample while it runs, so that another process can go on with it: read by `Session`, kept elsewhere.

A sample goes on by replay. Its agent starts again, and its turns and the answers of its tools are given back instead of
asked, as long as the agent asks the same. What is given back is kept again, under the attempt that goes on: so the
records of one attempt are the whole sample, and two attempts, of which one was only thought dead, never mix.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final, Literal

from rollstream.schemas.bounds import MAX_TURNS
from rollstream.schemas.progress import ProgressKind, TurnProgress
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import Turn

Keep = Callable[[TurnProgress, bool], Awaitable[None]]
"""Keeps a record of its key's newest state. True: it must be safe when the call returns."""
WentOn = Literal["went_on", "diverged"]
"""What became of what earlier attempts left: it was given back, or it did not hold."""
_MOST_ATTEMPTS: Final = 10**6


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier attempts left of a sample. `turns`: of the one that came furthest, whole but for the last.

    `ended`: that attempt's end. `session`: the session of tools that was opened last, and may be open.
    """

    turns: tuple[TurnProgress, ...] = ()
    ended: TurnProgress | None = None
    session: TurnProgress | None = None

    def turn(self, number: int) -> Turn | None:
        """Turn `number`, as far as it came."""
        return self.turns[number].turn if number < len(self.turns) else None

    def is_at(self, number: int, kind: ProgressKind) -> bool:
        """Whether turn `number` came as far as `kind` says, and no further."""
        return number < len(self.turns) and self.turns[number].kind is kind

    @property
    def num_tokens(self) -> int:
        return sum(len(one.turn.token_ids) for one in self.turns if one.turn is not None)


def earlier_of(records: Iterable[TurnProgress]) -> Earlier:
    """The records of one sample in the order in which they were kept, put together. Pure."""
    attempts: dict[str, dict[int, TurnProgress]] = {}
    ends: dict[str, TurnProgress] = {}
    session: TurnProgress | None = None
    for record in records:
        if record.kind is ProgressKind.SESSION:
            session = _later_session(session, record)
        elif record.kind is ProgressKind.ENDED:
            ends[record.attempt_id] = record
        elif record.turn is not None and record.number < MAX_TURNS:
            attempts.setdefault(record.attempt_id, {})[record.number] = record
    chains = {attempt: _chain(turns) for attempt, turns in attempts.items()}
    for attempt, end in ends.items():
        if end.number and _is_whole(chains.get(attempt, ()), end.number):
            return Earlier(chains[attempt], end, session)
    # Of two that came as far the later one counts. The other one was thought dead, and may have written once more: the
    # turn that it was about to call tools with, when its successor had called them with its own.
    return Earlier(max(reversed(chains.values()), key=len, default=()), None, session)


@dataclass(eq=False)
class SampleJournal:
    """The journal of one attempt at a sample."""

    rollout_id: str
    attempt_id: str
    generator_id: str
    keep: Keep
    earlier: Earlier = field(default_factory=Earlier)
    _: KW_ONLY
    takes_text: bool = False
    """Whether a turn without tokens is given back, of which nothing but the agent says that it asked the same."""
    num_kept: int = 0
    num_given_back_tokens: int = 0
    """Of the sample's tokens, those that an earlier attempt sampled."""
    went_on: WentOn | None = None
    left: Callable[[], Awaitable[None]] | None = None
    """Closes a session that a cancelled sample left open for the next owner; to be called if there is none."""

    def give_back(self, num_tokens: int) -> None:
        """Note that so many tokens need not be sampled again."""
        self.num_given_back_tokens += num_tokens
        self.went_on = "went_on"

    async def note(self, kind: ProgressKind, number: int, turn: Turn, *, is_urgent: bool = False) -> None:
        """Keep how far turn `number` has come."""
        self.num_kept += 1
        await self.keep(self._record(kind, number=number, turn=turn), is_urgent)

    async def opening(self, tools: str, session_id: str) -> int:
        """Keep that a session of tools will be open, before it is. Returns which attempt at the session this is."""
        before = self.earlier.session
        attempt = 0 if before is None else before.session_attempt + 1
        record = self._record(ProgressKind.SESSION, tools=tools, session_id=session_id, session_attempt=attempt)
        self.earlier = replace(self.earlier, session=record)
        await self.keep(record, True)
        return attempt

    async def ended(self, turns: Sequence[Turn], observations: dict[str, str]) -> None:
        """Keep that the sample is complete."""
        record = self._record(ProgressKind.ENDED, number=len(turns), observations=dict(observations))
        await self.keep(record, True)

    def forget(self) -> None:
        """Ask everything anew: what was kept does not hold. The session counts on."""
        if self.earlier.turns:
            self.went_on = "diverged"
        self.num_given_back_tokens = 0
        self.earlier = Earlier(session=self.earlier.session)

    def _record(self, kind: ProgressKind, **fields: object) -> TurnProgress:
        return TurnProgress.model_validate(
            {
                "rollout_id": self.rollout_id,
                "attempt_id": self.attempt_id,
                "generator_id": self.generator_id,
                "kind": kind,
                "noted_at": utc_now(),
                **fields,
            }
        )


def _chain(turns: dict[int, TurnProgress]) -> tuple[TurnProgress, ...]:
    """The turns from the first on without a gap; what is not whole is the last."""
    found: list[TurnProgress] = []
    while (one := turns.get(len(found))) is not None:
        found.append(one)
        if one.kind is not ProgressKind.TURN:
            break
    return tuple(found)


def _is_whole(chain: Sequence[TurnProgress], length: int) -> bool:
    return len(chain) == length and all(one.kind is ProgressKind.TURN for one in chain)


def _later_session(known: TurnProgress | None, found: TurnProgress) -> TurnProgress | None:
    if found.session_attempt > _MOST_ATTEMPTS or (known and known.session_attempt > found.session_attempt):
        return known
    return found
