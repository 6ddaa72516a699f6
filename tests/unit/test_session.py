"""A sample's session: turns that extend each other token for token, retries of one call, and what ends a sample."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.agents.session import Session
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.bounds import MAX_OBSERVATION_BYTES, MAX_OBSERVATIONS, MAX_TURNS
from rollstream.schemas.errors import EngineError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Status
from tests.harness.builders import a_generator, a_prompt

ASKED = Message(role="user", content="52910=")
AGAIN = Message(role="user", content="30=")


class NotingEngine(ScriptedEngine):
    """A real engine that keeps its requests, and fails at those of which `fails` says so."""

    def __init__(self, directory: Path, *, max_model_len: int = 512, fails: Callable[[int], bool] = lambda _: False):
        super().__init__(
            EngineSettings(
                kind="scripted", model_path=directory, max_model_len=max_model_len, scripted=ScriptedSettings()
            )
        )
        self.requests: list[GenerationRequest] = []
        self._fails = fails

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        if self._fails(len(self.requests)):
            raise EngineError("overloaded")
        return await super().generate(request)


class Told:
    """An agent whose steps a test tells it."""

    steps: Callable[[Session], object]
    chooses_sampling = True

    async def run(self, session: Session) -> None:
        await type(self).steps(session)  # type: ignore[misc]


def ended(
    engine: ScriptedEngine,
    steps: Callable[[Session], object],
    prompt: PromptSubmitted | None = None,
    began_anew: Callable[[str], None] = lambda _: None,
) -> RolloutGenerated:
    """The sample of an agent that takes these steps."""
    Told.steps = staticmethod(steps)

    async def run() -> RolloutGenerated:
        await engine.start(weight_version=3)
        runner = SampleRunner(
            engine,
            identity=a_generator(),
            bounds=SampleBounds(deadline_seconds=30.0, max_tries=2),
            agents=Agents({"told": Declaration(path=f"{__name__}.Told")}),
            began_anew=began_anew,
        )
        return await runner.run(prompt or asked(), 0)

    return asyncio.run(run())


def asked(**sampling: object) -> PromptSubmitted:
    chosen = Sampling.model_validate({"max_tokens": 12, "seed": 1, **sampling})
    return a_prompt(messages=(ASKED,), agent=AgentChoice(name="told"), sampling=chosen, purpose=Purpose.TRAIN)


async def two_turns(session: Session) -> None:
    await session.generate()
    await session.generate((AGAIN,))


def test_a_turn_extends_the_very_tokens_of_the_one_before(tmp_path: Path) -> None:
    engine = NotingEngine(tmp_path)
    found = ended(engine, two_turns)
    first, second = found.turns
    seen = np.concatenate([first.prompt_token_ids, first.token_ids])
    assert (second.prefix_turn, second.prefix_tokens) == (0, len(seen))
    assert engine.detokenize(second.prompt_token_ids) == "30="
    assert engine.requests[1].prompt_token_ids.tolist() == [*seen, *second.prompt_token_ids]
    assert [(turn.turn_type, turn.turn_number) for turn in found.turns] == [("answer", 0), ("answer", 1)]
    assert {(turn.temperature, turn.max_tokens) for turn in found.turns} == {(1.0, 12)}


def test_each_turn_has_a_seed_and_a_name_of_its_own_and_the_first_has_that_of_a_single_turn(tmp_path: Path) -> None:
    engine, alone = NotingEngine(tmp_path), NotingEngine(tmp_path)
    ended(engine, two_turns)
    ended(alone, lambda session: session.generate())
    first, second = engine.requests
    assert first.seed == alone.requests[0].seed != second.seed
    assert len({first.request_id, second.request_id}) == 2


def test_a_turn_that_extends_nothing_begins_anew(tmp_path: Path) -> None:
    async def steps(session: Session) -> None:
        await session.generate()
        await session.generate((AGAIN,), extends=None, turn_type="check", turn_number=7, cycle_step=2)

    reasons: list[str] = []
    second = ended(NotingEngine(tmp_path), steps, began_anew=reasons.append).turns[1]
    assert (second.prefix_turn, second.prefix_tokens) == (None, 0)
    assert reasons == ["history"]
    assert (second.turn_type, second.turn_number, second.cycle_step) == ("check", 7, 2)


def test_two_turns_may_extend_the_same_one(tmp_path: Path) -> None:
    async def steps(session: Session) -> None:
        await two_turns(session)
        await session.generate((ASKED,), extends=0)
        assert [message.content for message in session.conversation(2)[:1]] == ["52910="]
        assert session.conversation(2)[2] == ASKED

    turns = ended(NotingEngine(tmp_path), steps).turns
    assert [turn.prefix_turn for turn in turns] == [None, 0, 0]


def test_a_call_that_fails_is_asked_again_alone_with_the_same_seed(tmp_path: Path) -> None:
    engine = NotingEngine(tmp_path, fails=lambda number: number == 2)
    found = ended(engine, two_turns)
    assert (found.status, len(found.turns)) == (Status.COMPLETED, 2)
    assert [request.seed for request in engine.requests[1:]] == [engine.requests[1].seed] * 2
    assert len({request.request_id for request in engine.requests}) == 3


@pytest.mark.parametrize(
    ("fails", "status", "num_turns"),
    [(lambda number: number > 1, Status.UNRESOLVED, 1), (lambda _: True, Status.UNRESOLVED, 0)],
)
def test_an_unresolved_sample_keeps_its_turns(
    tmp_path: Path, fails: Callable[[int], bool], status: Status, num_turns: int
) -> None:
    found = ended(NotingEngine(tmp_path, fails=fails), two_turns)
    assert (found.status, len(found.turns)) == (status, num_turns)
    assert found.failure
    assert found.failure.code is FailureCode.ENGINE


def test_without_room_for_another_turn_the_sample_is_completed_and_cut_off(tmp_path: Path) -> None:
    found = ended(NotingEngine(tmp_path, max_model_len=14), two_turns)
    assert (found.status, len(found.turns)) == (Status.COMPLETED, 1)
    assert found.turns[0].finish_reason is FinishReason.LENGTH
    assert found.is_truncated


def test_without_room_for_the_first_turn_the_sample_fails(tmp_path: Path) -> None:
    found = ended(NotingEngine(tmp_path, max_model_len=6), two_turns)
    assert (found.status, found.turns) == (Status.FAILED, ())
    assert found.failure
    assert found.failure.code is FailureCode.PROMPT_TOO_LONG


def test_an_agent_without_end_is_cut_off_at_the_bound_of_turns(tmp_path: Path) -> None:
    async def for_ever(session: Session) -> None:
        while True:
            await session.generate((AGAIN,), extends=None)

    found = ended(NotingEngine(tmp_path), for_ever)
    assert (found.status, len(found.turns)) == (Status.COMPLETED, MAX_TURNS)
    assert found.turns[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("second", "may_train"),
    [({}, [True, True]), ({"trains": False}, [True, False]), ({"sampling": Sampling(top_k=5)}, [True, False])],
)
def test_a_turn_trains_if_its_agent_lets_it_and_its_sampling_is_the_policys(
    tmp_path: Path, second: dict[str, object], may_train: Sequence[bool]
) -> None:
    async def steps(session: Session) -> None:
        await session.generate()
        await session.generate((AGAIN,), **second)  # type: ignore[arg-type]

    turns = ended(NotingEngine(tmp_path), steps).turns
    assert [turn.may_train for turn in turns] == may_train


def test_a_training_sample_of_which_no_turn_may_train_fails(tmp_path: Path) -> None:
    found = ended(NotingEngine(tmp_path), lambda session: session.generate(trains=False))
    assert found.status is Status.FAILED
    assert found.failure
    assert (found.failure.code, len(found.turns)) == (FailureCode.UNSUPPORTED_SAMPLING, 1)


def test_what_an_agent_notes_is_in_the_record_within_bounds(tmp_path: Path) -> None:
    async def steps(session: Session) -> None:
        await session.generate()
        for number in range(MAX_OBSERVATIONS):
            session.note(f"key {number}", "seen")
        session.note("key 0", "ä" * (MAX_OBSERVATION_BYTES // 2))
        for key, value in (("one more", "seen"), ("key 1", "ä" * (MAX_OBSERVATION_BYTES // 2 + 1))):
            with pytest.raises(ValueError, match=f"{MAX_OBSERVATION_BYTES} bytes and {MAX_OBSERVATIONS} observations"):
                session.note(key, value)

    observations = ended(NotingEngine(tmp_path), steps).observations
    assert len(observations) == MAX_OBSERVATIONS
    assert observations["key 1"] == "seen"
