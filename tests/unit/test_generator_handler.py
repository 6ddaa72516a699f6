"""The generator's handler without Kafka, how much it takes at a time, and what it notes beside a commit."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from rollstream.agents.load import Agents
from rollstream.agents.model_calls import sample_seed
from rollstream.agents.samples import SampleBounds
from rollstream.agents.single_turn import SingleTurn
from rollstream.bus.commit_notes import (
    MAX_NOTE_BYTES,
    ended,
    ids_in,
    ids_note,
    is_of_topic,
    marks_in,
    metadata_of,
    note_in,
    note_of,
    topic_id_in,
)
from rollstream.engines.protocol import Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings, ScriptedSettings
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.handler import GeneratorHandler, InHand, without_tokens
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import EngineDeadError, EngineError, RecordTooLargeError
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Status
from tests.harness.builders import a_generated, a_generator, a_prompt


class FailingEngine(ScriptedEngine):
    """A real engine whose first calls fail as an overloaded one's do."""

    def __init__(self, settings: EngineSettings, *, failures: int, error: Callable[[str], EngineError]) -> None:
        super().__init__(settings)
        self._failures = failures
        self._error = error

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._failures > 0:
            self._failures -= 1
            raise self._error("out of memory")
        return await super().generate(request)


def settings(tmp_path: Path, token_seconds: float = 0.0) -> EngineSettings:
    return EngineSettings(kind="scripted", model_path=tmp_path, scripted=ScriptedSettings(token_seconds=token_seconds))


def handled(
    engine: ScriptedEngine,
    prompt: PromptSubmitted,
    *,
    deadline_seconds: float = 60.0,
    bounds: SampleBounds | None = None,
) -> list[RolloutGenerated]:
    async def run() -> list[RolloutGenerated]:
        await engine.start(weight_version=0)
        current = CurrentVersion()
        async with current.changing(0, 1.0):
            pass
        resolved = bounds or SampleBounds(deadline_seconds=deadline_seconds, max_tries=2)
        handler = GeneratorHandler(engine, identity=a_generator(), bounds=resolved, current=current)
        return [sample async for sample in handler.handle(prompt)]

    return asyncio.run(run())


def test_every_sample_of_the_group_ends_once_with_an_attempt_of_its_own(tmp_path: Path) -> None:
    samples = handled(ScriptedEngine(settings(tmp_path)), a_prompt(group_size=4))
    assert sorted(sample.sample_index for sample in samples) == [0, 1, 2, 3]
    assert len({sample.attempt_id for sample in samples}) == 4
    assert all(sample.status is Status.COMPLETED and sample.turns for sample in samples)


def test_max_tokens_are_clamped_to_what_fits_and_the_finish_reason_says_length(tmp_path: Path) -> None:
    engine = ScriptedEngine(settings(tmp_path).model_copy(update={"max_model_len": 8}))
    (sample,) = handled(engine, a_prompt(group_size=1, sampling=Sampling(max_tokens=100)))
    assert len(sample.turns[0].token_ids) == 2
    assert sample.turns[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=5)])
def test_a_distribution_that_is_not_the_policys_never_trains_but_may_serve(tmp_path: Path, sampling: Sampling) -> None:
    engine = ScriptedEngine(settings(tmp_path))
    (trained,) = handled(engine, a_prompt(group_size=1, sampling=sampling))
    (served,) = handled(engine, a_prompt(group_size=1, sampling=sampling, purpose=Purpose.SERVE))
    assert trained.status is Status.FAILED
    assert str(trained.failure).startswith("unsupported_sampling: ")
    assert served.status is Status.COMPLETED


def engine_errors() -> float:
    return REGISTRY.get_sample_value("rollstream_generator_engine_errors_total") or 0.0


class CountingEngine(ScriptedEngine):
    """Counts the requests."""

    num_asked = 0

    async def generate(self, request: GenerationRequest) -> Generation:
        self.num_asked += 1
        return await super().generate(request)


def test_a_sample_without_a_token_at_its_deadline_is_unresolved_and_no_error_of_its_engine(tmp_path: Path) -> None:
    before, engine = engine_errors(), CountingEngine(settings(tmp_path, 10.0))
    (sample,) = handled(engine, a_prompt(group_size=1), deadline_seconds=0.01)
    assert sample.status is Status.UNRESOLVED
    assert str(sample.failure).startswith("deadline: not done within 0.01 s")
    assert sample.turns == ()
    assert engine_errors() == before
    assert engine.num_asked == 1, "there is no time for another try"


def cuts() -> float:
    return REGISTRY.get_sample_value("rollstream_generator_deadline_cuts_total") or 0.0


def test_a_sample_past_its_deadline_keeps_its_tokens_as_truncated_and_is_counted(tmp_path: Path) -> None:
    before = cuts()
    prompt = a_prompt(group_size=1, messages=(Message(role="user", content="9" * 200 + "="),))
    prompt = prompt.model_copy(update={"sampling": Sampling(max_tokens=1000, seed=1)})
    (whole,) = handled(ScriptedEngine(settings(tmp_path)), prompt)
    assert cuts() == before
    (cut,) = handled(ScriptedEngine(settings(tmp_path, 0.02)), prompt, deadline_seconds=1.0)
    assert (cut.status, cut.failure) == (Status.COMPLETED, None)
    (turn,) = cut.turns
    assert turn.finish_reason is FinishReason.LENGTH
    assert 1 <= len(turn.token_ids) < len(whole.turns[0].token_ids)
    assert turn.token_ids.tolist() == whole.turns[0].token_ids[: len(turn.token_ids)].tolist()
    assert [(span.start, span.end) for span in turn.weight_spans] == [(0, len(turn.token_ids))]
    assert cuts() == before + 1


class DeafEngine(ScriptedEngine):
    """An engine that hears of no deadline."""

    async def generate(self, request: GenerationRequest) -> Generation:
        return await super().generate(replace(request, ends_at=None))


def test_an_engine_that_ends_nothing_at_the_deadline_leaves_the_sample_unresolved(tmp_path: Path) -> None:
    engine = DeafEngine(settings(tmp_path, 100.0))
    bounds = SampleBounds(deadline_seconds=0.01, max_tries=2, grace_seconds=0.01)
    (sample,) = handled(engine, a_prompt(group_size=1), bounds=bounds)
    assert sample.status is Status.UNRESOLVED
    assert str(sample.failure).startswith("deadline: ")


def test_an_answer_that_is_whole_a_little_after_the_deadline_is_not_counted_as_cut(tmp_path: Path) -> None:
    before = cuts()
    (sample,) = handled(DeafEngine(settings(tmp_path, 0.01)), a_prompt(group_size=1), deadline_seconds=0.01)
    assert sample.status is Status.COMPLETED
    assert sample.turns[0].finish_reason is FinishReason.STOP
    assert cuts() == before


@pytest.mark.parametrize(("failures", "status"), [(1, Status.COMPLETED), (2, Status.UNRESOLVED)])
def test_an_engine_error_is_counted_and_tried_again_within_the_bound(
    tmp_path: Path, failures: int, status: Status
) -> None:
    before = engine_errors()
    engine = FailingEngine(settings(tmp_path), failures=failures, error=EngineError)
    (sample,) = handled(engine, a_prompt(group_size=1))
    assert (sample.status, engine_errors() - before) == (status, failures)


def test_a_dead_engine_is_no_sample_but_a_broken_world(tmp_path: Path) -> None:
    engine = FailingEngine(settings(tmp_path), failures=1, error=EngineDeadError)
    with pytest.raises(EngineDeadError):
        handled(engine, a_prompt(group_size=1))


def idle_handler(tmp_path: Path) -> GeneratorHandler:
    bounds = SampleBounds(deadline_seconds=1.0, max_tries=1)
    engine = ScriptedEngine(settings(tmp_path))
    return GeneratorHandler(engine, identity=a_generator(), bounds=bounds, current=CurrentVersion())


def test_a_prompt_that_is_given_up_ends_as_unresolved_samples(tmp_path: Path) -> None:
    samples = list(idle_handler(tmp_path).give_up(a_prompt(group_size=3), RuntimeError("died 5 times")))
    ends = [(sample.status, str(sample.failure)) for sample in samples]
    assert ends == [(Status.UNRESOLVED, "given_up: died 5 times")] * 3


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        (Sampling(max_tokens=2**62), "bad_prompt: max_tokens 4611686018427387904 is above 1048576"),
        (Sampling(temperature=1e-300), "unsupported_sampling: temperature 1e-300 is neither 0 nor in [0.01, 100]"),
    ],
)
@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.SERVE])
def test_a_number_out_of_bounds_fails_every_sample_and_names_the_bound(
    tmp_path: Path, sampling: Sampling, why: str, purpose: Purpose
) -> None:
    samples = handled(ScriptedEngine(settings(tmp_path)), a_prompt(group_size=2, sampling=sampling, purpose=purpose))
    assert [sample.status for sample in samples] == [Status.FAILED] * 2
    assert all(str(sample.failure).startswith(why) for sample in samples)


@pytest.mark.parametrize(
    ("group_size", "answer", "why"),
    [(10**12, "", "group_size 1000000000000 is above 1024"), (1024, "x" * 5_900_000, "group_size 1024 x 59")],
    ids=["number", "bytes"],
)
def test_a_group_beyond_its_bound_is_answered_by_one_sample_that_says_so(
    tmp_path: Path, group_size: int, answer: str, why: str
) -> None:
    prompt = a_prompt(group_size=group_size, reference_answer=answer)
    (sample,) = handled(ScriptedEngine(settings(tmp_path)), prompt)
    assert (sample.status, sample.group_size) == (Status.FAILED, group_size)
    assert str(sample.failure).startswith(f"bad_prompt: {why}")
    assert len(list(idle_handler(tmp_path).give_up(prompt, RuntimeError("died")))) == 1


def test_a_sample_over_the_size_limit_fails_without_its_tokens() -> None:
    sample = without_tokens(a_generated(), RecordTooLargeError("8 MB"))
    assert (sample.status, sample.turns, str(sample.failure)) == (Status.FAILED, (), "too_large: 8 MB")


def test_each_sample_has_a_seed_of_its_own_and_the_same_one_again() -> None:
    seeds = [sample_seed(Sampling(seed=7), index) for index in range(8)]
    assert len(set(seeds)) == 8
    assert seeds == [sample_seed(Sampling(seed=7), index) for index in range(8)]
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(Sampling(), 0) is None
    assert sample_seed(Sampling(seed=7), 0, turn=1) not in seeds


SERVERS = {"urls": ("http://one:8000",), "model": "policy", "weight_updates": "vllm", "max_connections": 128}


def in_hand(max_tokens_in_flight: int | None = None, **engine: Any) -> InHand:
    settings = GeneratorSettings(
        run="demo",
        engine=EngineSettings(**{"model_path": Path("model"), **engine}),
        max_tokens_in_flight=max_tokens_in_flight,
    )
    return InHand(settings, max_model_len=8192, agents=Agents({"talker": Declaration(path=f"{__name__}.Talker")}))


class Talker(SingleTurn):
    """An agent that says how many turns it may have."""

    def __init__(self, turns: str = "4") -> None:
        self.max_turns = int(turns)


def asked(group_size: int, max_tokens: int, agent: str = "single_turn", **options: str) -> PromptSubmitted:
    choice = AgentChoice(name=agent, options=options)
    return a_prompt(group_size=group_size, sampling=Sampling(max_tokens=max_tokens), agent=choice)


@pytest.mark.parametrize(
    ("engine", "most"),
    [
        ({}, 384),
        ({"max_num_seqs": 64}, 96),
        ({"max_num_seqs": 1}, 2),
        ({"kind": "transformers", "max_num_seqs": 5}, 8),
        ({"kind": "scripted", "max_num_seqs": 2}, 3),
        ({"kind": "openai_http", "max_num_seqs": 7, "http": SERVERS}, 192),
    ],
)
def test_one_and_a_half_times_the_samples_that_the_engine_runs_are_in_hand(engine: dict[str, Any], most: int) -> None:
    taken = in_hand(**engine)
    assert taken.most == most
    assert [taken.weight(asked(8, max_tokens)) for max_tokens in (12, 8192)] == [8, 8], "however long they are"


@pytest.mark.parametrize(("bound", "weight"), [(None, 1), (65536, 12)])
def test_the_samples_of_a_prompt_free_together_what_it_weighs(bound: int | None, weight: int) -> None:
    prompt, taken = asked(8, 12), in_hand(bound)
    assert 8 * taken.freed(a_generated(prompt=prompt)) == taken.weight(prompt) == 8 * weight
    assert taken.weight(asked(10**12, 12)) == weight, "beyond its bound one sample says so"


def test_where_tokens_are_bounded_a_prompt_weighs_the_most_that_it_can_have() -> None:
    tokens = in_hand(65536)
    assert tokens.most == 65536
    assert tokens.weight(asked(4, 12)) == 48
    assert tokens.weight(asked(8, 8192)) == 65536
    # No more than the model takes.
    assert tokens.weight(asked(4, 2**62)) == 4 * 8192
    assert tokens.weight(asked(4, 12, "talker")) == 4 * 4 * 12
    assert tokens.weight(asked(4, 12, "talker", turns="many")) == 4 * 12, "its samples fail"


def test_as_many_prompts_of_one_sample_are_taken_as_the_engine_has_room_for() -> None:
    many = {"kind": "openai_http", "http": {**SERVERS, "max_connections": 4000}}
    assert (in_hand(**many).most, in_hand(**many).most_prompts) == (6000, 6000)
    assert in_hand().most_prompts == in_hand(10**9).most_prompts == 4096


NUMBERS = st.integers(0, 10**18 - 1)


def test_metadata_names_the_topic_and_then_the_offsets_of_each_mark() -> None:
    assert note_of({1024: 17, 1030: 18, 1027: 17}) == "17:1024,1027;18:1030"
    for note in ("", "17:1024"):
        metadata = metadata_of("kYb3wUkdRqy5zEJ-rbkQ_w", note)
        assert (topic_id_in(metadata), note_in(metadata)) == ("kYb3wUkdRqy5zEJ-rbkQ_w", note)
        assert (topic_id_in(ended(metadata)), note_in(ended(metadata))) == ("kYb3wUkdRqy5zEJ-rbkQ_w", note)
    assert [(topic_id_in(metadata), note_in(metadata)) for metadata in (None, "")] == [("", ""), ("", "")]


def test_a_commit_counts_unless_it_names_another_topic() -> None:
    for metadata in ("new", "new 17:1024", "", None, "new\0", "\0"):
        assert is_of_topic(metadata, "new"), metadata
    for metadata in ("old", "old 17:1024", "old\0"):
        assert not is_of_topic(metadata, "new"), metadata


@given(st.text(alphabet="0123456789:;,", max_size=60))
def test_whatever_a_note_says_it_is_read_without_an_error(note: str) -> None:
    assert all(isinstance(number, int) for pair in marks_in(note).items() for number in pair)


def test_ids_of_several_topics_are_read_as_they_were_written_and_mark_nothing() -> None:
    ids = {"demo.prompts": "kYb3wUkdRqy5zEJ-rbkQ_w", "demo.scored": "0Yb3wUkdRqy5zEJ-rbkQ_w"}
    assert ids_in(ids_note(ids)) == ids
    assert marks_in(ids_note(ids)) == {}
    assert [ids_in(note) for note in ("", "17:1024", "=", "a=", "=b,,")] == [{}] * 5


@given(st.dictionaries(NUMBERS, NUMBERS, max_size=20))
def test_what_fits_is_read_as_it_was_written(marks: dict[int, int]) -> None:
    assert marks_in(note_of(marks)) == marks


@given(st.dictionaries(NUMBERS, st.integers(0, 3), min_size=50, max_size=200))
def test_a_note_is_bounded_and_keeps_the_lowest_marks(marks: dict[int, int]) -> None:
    note = note_of(marks)
    found = marks_in(note)
    assert len(note.encode()) <= MAX_NOTE_BYTES
    left_out = [mark for offset, mark in marks.items() if offset not in found]
    assert found.items() <= marks.items()
    assert max(found.values()) <= min(left_out, default=3)


STRANGE = ("", "of another program", "7", "7:", ":7", "7:1;", "7:1,,2", "-7:1", "\u0667:1", "7:1\n", "7:1," * 600)


@pytest.mark.parametrize("note", [*STRANGE, "7:" + "1" * 19])
def test_a_note_of_a_stranger_marks_nothing(note: str) -> None:
    assert marks_in(note) == {}
