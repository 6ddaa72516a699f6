"""The agent `reasoning_cache`: its state, its prompts and its turns; tags, braces and missing room; going on."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from rollstream.agents.journal import SampleJournal, earlier_of
from rollstream.agents.problem_state import MAX_TEMPLATE_BYTES, CycleOptions, InferenceProblemState, state_of
from rollstream.agents.reasoning_cache import ReasoningCache
from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.protocol import Engine, Generation, GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.errors import ConfigurationError, EngineError, FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import new_attempt_id, rollout_id
from rollstream.schemas.progress import TurnProgress
from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.rollout import FinishReason, RolloutGenerated, Status
from tests.harness.builders import a_generator, a_prompt, a_turn

R_TEMPLATE, S_TEMPLATE = "P:{problem} S:{curr_summary}", "P:{problem} S:{existing_summary} R:{reasoning}"
TABLE = [
    (0, "reasoning", 1),
    (1, "summarization", 1),
    (2, "reasoning", 2),
    (3, "summarization", 2),
    (4, "reasoning", 3),
    (5, "summarization", 3),
]
"""The document's table for three cycles: cycle_step, turn_type, turn_number."""


class SayingEngine(ScriptedEngine):
    """A real engine whose answers a test says; `fails` tells of which call, counted from 1, it fails once."""

    def __init__(self, directory: Path, says: Callable[[str], str], fails: int = 0, room: int = 4096) -> None:
        super().__init__(EngineSettings(kind="scripted", model_path=directory, max_model_len=room))
        self._says = says
        self._fails = fails
        self.asked: list[str] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(self.detokenize(request.prompt_token_ids))
        if len(self.asked) == self._fails:
            raise EngineError("the connection was reset")
        found = await super().generate(request)
        tokens = self.tokenize_text(self._says(self.asked[-1]))[: request.max_tokens]
        span = found.weight_spans[0].model_copy(update={"end": len(tokens)})
        return replace(
            found,
            token_ids=tokens,
            behavior_logprobs=np.full(len(tokens), -0.5, dtype=np.float32),
            weight_spans=(span,),
            finish_reason=FinishReason.STOP,
            text=self.detokenize(tokens),
        )


class TextEngine(SayingEngine):
    """A real engine that speaks text alone, as a server without a tokenizer does."""

    def tokenize(self, *_: object) -> None:  # type: ignore[override]
        return None

    def tokenize_text(self, text: str, *, is_own: bool = False) -> None:  # type: ignore[override]
        return None

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request.messages[-1].content)
        nothing = np.zeros(0, dtype=np.int32)
        return Generation(
            token_ids=nothing,
            behavior_logprobs=nothing.astype(np.float32),
            weight_spans=(),
            finish_reason=FinishReason.STOP,
            text=self._says(self.asked[-1]),
        )


def echoing(asked: str) -> str:
    """A summary says what was reasoned; reasoning numbers the summary on."""
    return asked.rsplit(" R:", maxsplit=1)[-1] if " R:" in asked else f"{asked.rsplit(' S:', maxsplit=1)[-1]}+"


@dataclass(eq=False)
class Sampling3:
    """Attempts at one sample of three cycles, each of which goes on from what those before it kept."""

    engine: Engine
    others: Mapping[str, Engine] = field(default_factory=dict)
    kept: list[TurnProgress] = field(default_factory=list)

    def run(self, prompt: PromptSubmitted | None = None, **options: str) -> RolloutGenerated:
        asked = prompt or a_cycling_prompt(**options)

        async def keep(progress: TurnProgress, is_urgent: bool) -> None:
            self.kept.append(progress)

        async def run() -> RolloutGenerated:
            for engine in (self.engine, *self.others.values()):
                await engine.start(weight_version=3)
            bounds = SampleBounds(deadline_seconds=30.0, max_tries=2)
            runner = SampleRunner(self.engine, identity=a_generator(), bounds=bounds, others=self.others)
            name = rollout_id(asked.group_id, 0)
            return await runner.run(
                asked, 0, None, SampleJournal(name, new_attempt_id(), "g", keep, earlier_of(self.kept))
            )

        return asyncio.run(run())


def a_cycling_prompt(**options: str) -> PromptSubmitted:
    """A prompt for three cycles."""
    templates = {"reasoning_prompt_template": R_TEMPLATE, "summarization_prompt_template": S_TEMPLATE}
    return a_prompt(
        messages=(Message(role="system", content="Be brief. "), Message(role="user", content="1{x}")),
        agent=AgentChoice(name="reasoning_cache", options={**templates, **options}),
        purpose=Purpose.TRAIN,
        sampling=Sampling(max_tokens=64, seed=1),
    )


def table_of(found: RolloutGenerated) -> list[tuple[int, str, int]]:
    return [(turn.cycle_step, turn.turn_type, turn.turn_number) for turn in found.turns]


def test_three_cycles_are_the_six_rows_of_the_document_and_each_turn_begins_anew(tmp_path: Path) -> None:
    engine = SayingEngine(tmp_path, echoing)
    found = Sampling3(engine).run()
    assert found.status is Status.COMPLETED, found.failure
    assert table_of(found) == TABLE
    assert [turn.prefix_turn for turn in found.turns] == [None] * 6
    assert [turn.trains for turn in found.turns] == [True, False] * 3
    assert engine.asked[2] == "Be brief. P:1{x} S:+"
    assert engine.asked[3] == "Be brief. P:1{x} S:+ R:++"
    assert found.turns[-1].text == "+++"


def test_the_state_of_recorded_turns_holds_what_the_document_says(tmp_path: Path) -> None:
    found = Sampling3(SayingEngine(tmp_path, echoing)).run()
    options = CycleOptions(reasoning_prompt_template=R_TEMPLATE, summarization_prompt_template=S_TEMPLATE)
    state = state_of("1{x}", options, found.turns)
    counters = (state.reasoning_turn_number, state.summarization_turn_number, state.overall_cycle_step)
    assert counters == (3, 3, 6)
    assert state.reasoning_rollout_store == list(found.turns[::2])
    assert state.summarization_rollout_store == list(found.turns[1::2])
    assert state.reasoning_string_store == state.reasoning_string_complete_store == ["+", "++", "+++"]
    assert state.summarization_string_store == state.summarization_string_complete_store == ["+", "++", "+++"]
    assert (state.curr_summary, state.curr_reasoning) == ("+++", "+++")
    assert state.get_filled_reasoning_prompt() == "P:1{x} S:+++"


@pytest.mark.parametrize("call", range(1, 7))
def test_a_call_that_fails_once_changes_neither_the_other_turns_nor_a_counter(tmp_path: Path, call: int) -> None:
    expected, engine = Sampling3(SayingEngine(tmp_path, echoing)).run(), SayingEngine(tmp_path, echoing, fails=call)
    found = Sampling3(engine).run()
    assert len(engine.asked) == 7, "one call more, of the same step"
    assert [turn.model_copy(update={"latency_seconds": 0.0}) for turn in found.turns] == [
        turn.model_copy(update={"latency_seconds": 0.0}) for turn in expected.turns
    ]


@pytest.mark.parametrize("num_kept", range(7))
def test_a_sample_goes_on_in_another_process_and_asks_no_finished_step_again(tmp_path: Path, num_kept: int) -> None:
    whole = Sampling3(SayingEngine(tmp_path, echoing))
    expected = whole.run()
    engine = SayingEngine(tmp_path, echoing)
    found = Sampling3(engine, kept=whole.kept[:num_kept]).run()
    assert table_of(found) == TABLE
    assert [turn.text for turn in found.turns] == [turn.text for turn in expected.turns]
    assert len(engine.asked) == 6 - num_kept


GOLDEN = {
    "no tag": "no tag",
    "<think>open": "open",
    "<think>both</think>after": "both",
    "before</think>after": "before",
    "<think>a<think>b</think>c</think>d": "ab",
    " <think> blank </think>": "blank",
}


@pytest.mark.parametrize(("said", "counts"), GOLDEN.items())
@pytest.mark.parametrize("use_think_tags", [False, True])
def test_what_counts_of_reasoning_is_before_the_closing_tag(said: str, counts: str, use_think_tags: bool) -> None:
    state = InferenceProblemState("p", CycleOptions(use_think_tags=use_think_tags))
    state.update_reasoning(a_turn(text=said))
    assert state.curr_reasoning == counts
    assert state.reasoning_string_complete_store == [("<think>" if use_think_tags else "") + said]


def test_a_renderer_that_takes_thoughts_apart_changes_nothing_of_it() -> None:
    state = InferenceProblemState("p", CycleOptions())
    state.update_reasoning(a_turn(text="answer", reasoning="thoughts"))
    assert state.curr_reasoning == "thoughts"
    assert state.reasoning_string_complete_store == ["<think>thoughts</think>answer"]


def test_summaries_take_the_place_of_each_other_or_follow_each_other() -> None:
    for style, expected in (("summ", ["a", "b"]), ("sequential", ["a", "a\n\nb"])):
        state = InferenceProblemState("p", CycleOptions(summarization_style=style))  # type: ignore[arg-type]
        for said in ("<think>a</think>", " b<|im_end|>"):
            state.update_summarization(a_turn(text=said))
        assert state.summarization_string_store == expected


def test_an_opened_tag_is_prompt_and_is_not_sampled(tmp_path: Path) -> None:
    engine = SayingEngine(tmp_path, lambda asked: "t</think>a" if asked.endswith("<think>") else "s")
    found = Sampling3(engine).run(use_think_tags="true")
    first = found.turns[0]
    assert engine.detokenize(first.prompt_token_ids).endswith("<think>")
    assert first.text == "t</think>a"
    assert engine.asked[1].endswith("R:t")


def test_a_prompt_for_completion_is_plain_text_which_the_summary_follows(tmp_path: Path) -> None:
    engine = SayingEngine(tmp_path, lambda asked: "s" if "Sum" in asked else "r")
    styles = {"reasoning_prompt_style": "completion", "reasoning_prompt_template": "{problem}\n"}
    Sampling3(engine).run(**styles, summarization_prompt_template="Sum{problem}{existing_summary}{reasoning}")
    assert engine.asked[:3] == ["1{x}\n", "Be brief. Sum1{x}r", "1{x}\n\n\ns\n\n"]


def test_a_summary_that_leaves_no_room_ends_the_sample_as_completed_and_cut_off(tmp_path: Path) -> None:
    engine = SayingEngine(tmp_path, lambda asked: "x" * 60, room=80)
    found = Sampling3(engine).run()
    assert found.status is Status.COMPLETED
    assert 0 < len(found.turns) < 6
    assert found.turns[-1].is_truncated


def test_another_model_writes_summaries_that_have_no_tokens_and_never_train(tmp_path: Path) -> None:
    summarizer, engine = TextEngine(tmp_path, echoing), SayingEngine(tmp_path, echoing)
    whole = Sampling3(engine, {"scribe": summarizer})
    found = whole.run(summarizer="scribe", trains_summaries="true", summary_top_k="20")
    assert found.status is Status.COMPLETED, found.failure
    assert table_of(found) == TABLE
    assert [turn.model for turn in found.turns] == ["", "scribe"] * 3
    for turn in found.turns[1::2]:
        assert not turn.may_train
        assert not len(turn.token_ids)
        assert turn.sampling == '{"top_p": 1.0, "top_k": 20}'
    again = Sampling3(SayingEngine(tmp_path, echoing), {"scribe": TextEngine(tmp_path, echoing)}, whole.kept[:4])
    assert again.run(summarizer="scribe", trains_summaries="true", summary_top_k="20").status is Status.COMPLETED
    assert [len(engine.asked) for engine in (again.engine, again.others["scribe"])] == [1, 1]  # type: ignore[attr-defined]


REFUSED = {
    "rounds": ("3", "'rounds' is no option of it"),
    "num_reasoning_steps": ("65", "num_reasoning_steps '65' must be from 1 to 64"),
    "use_think_tags": ("yes", "use_think_tags 'yes' must be true or false"),
    "summarization_style": ("short", "must be summ or sequential"),
    "reasoning_prompt_style": ("chat", "must be structured or completion"),
    "summary_top_p": ("0", "summary_top_p '0' must be from 0 to 1, above 0"),
    "summary_temperature": ("nan", "summary_temperature 'nan' must be from 0 to 100"),
    "max_summary_tokens": ("-1", "max_summary_tokens '-1' must be from 1 to"),
    "summarizer": ("scribe", "model 'scribe' is none beside the policy"),
    "reasoning_prompt_template": ("{problem.__class__}{curr_summary}", "has {problem.__class__}"),
    "summarization_prompt_template": ("{problem}", "lacks {existing_summary}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_does_not_fit_fails_the_sample_and_says_why(tmp_path: Path, name: str) -> None:
    value, why = REFUSED[name]
    found = Sampling3(SayingEngine(tmp_path, echoing)).run(**{name: value})
    assert found.status is Status.FAILED
    assert found.failure is not None
    assert found.failure.code is FailureCode.BAD_AGENT_OPTIONS
    assert why in found.failure.message


def test_an_option_of_a_record_may_be_named_as_an_argument_of_python_s() -> None:
    with pytest.raises(FailedSampleError, match="'self' is no option of it"):
        ReasoningCache(**{"self": "3"})


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{problem} {curr_summary} {answer}", "has {answer}: its variables are {curr_summary}, {problem}"),
        ("{problem}", "lacks {curr_summary}"),
        ("{problem:>99999999999} {curr_summary}", "has {problem:>99999999999}"),
        ("{problem!r} {curr_summary}", "has {problem:}"),
        ("{problem} {curr_summary} {", "a brace is written twice"),
        ("{problem} {curr_summary} {}", "has {}"),
        ("{problem}" * 5 + "{curr_summary}", "has {problem} 5 times, the bound is 4"),
        ("{problem} {curr_summary}" + "x" * MAX_TEMPLATE_BYTES, f"the bound is {MAX_TEMPLATE_BYTES}"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused_when_it_is_read(template: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CycleOptions(reasoning_prompt_template=template)
    assert why in str(caught.value)


def test_braces_in_what_fills_a_template_stay_as_they_are() -> None:
    options = CycleOptions(reasoning_prompt_template="{{}} {problem} {curr_summary}")
    state = InferenceProblemState("{problem} {0} }{", options, curr_summary="{curr_summary!r}")
    assert state.get_filled_reasoning_prompt() == "{} {problem} {0} }{ {curr_summary!r}"


def test_a_conversation_that_does_not_end_with_its_problem_fails(tmp_path: Path) -> None:
    prompt = a_cycling_prompt().model_copy(update={"messages": (Message(role="assistant", content="Hi"),)})
    found = Sampling3(SayingEngine(tmp_path, echoing)).run(prompt)
    assert found.failure is not None
    assert found.failure.code is FailureCode.BAD_PROMPT
