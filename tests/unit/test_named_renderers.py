"""Conversations by the rules of a family of models: they go on from the tokens that were sampled, or begin anew."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from pydantic import ValidationError

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner, identity_of
from rollstream.agents.session import Asked, Form, Session
from rollstream.engines.named_renderer import _Signs
from rollstream.engines.protocol import Generation, GenerationRequest, Parsed
from rollstream.engines.settings import EngineSettings, RendererName
from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.engines.transformers_engine import TransformersEngine
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import AgentChoice, Message, Sampling, ToolCall
from rollstream.schemas.rollout import FinishReason, RolloutGenerated
from tests.harness.builders import a_prompt
from tests.harness.families import FAMILIES, TEMPLATE, Family, family_tokenizer
from tests.harness.fuzzed_conversations import converse, num_broken
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")

Known = tuple[ChatTokenizer, Family]
NUM_FUZZED = 40
NUM_FUZZED_SLOWLY = 1_250
TOOL = json.dumps({"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {}}})
ADDED = '{"a": 2, "b": "2"}'
ASKED = Message(role="user", content="What is 2 + 2?")
CALLING = Message(
    role="assistant",
    content="I add.",
    reasoning="Two and two.",
    tool_calls=(ToolCall(call_id="1", name="add", arguments=ADDED),),
)
ANSWERED = Message(role="tool", content="4", tool_call_id="1", name="add")


@pytest.fixture(scope="module", params=[TEMPLATE, *FAMILIES], ids=lambda family: family.name or "template")
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    return family_tokenizer(tmp_path_factory.mktemp("model"), request.param), request.param


def fuzz(known: Known, seeds: Sequence[int]) -> tuple[int, int, int]:
    """Turns that went on, turns that began anew, and turns with other tokens than were sampled."""

    async def run() -> tuple[int, int, int]:
        extended = anew = broken = 0
        for seed in seeds:
            engine, session = await converse(*known, seed)
            later = session.turns[1:]
            went_on = sum(turn.prefix_turn is not None for turn in later)
            extended, anew = extended + went_on, anew + len(later) - went_on
            broken += num_broken(engine, session)
            assert engine.reasons == ["renderer" if known[1].name else "template"] * (len(later) - went_on)
        return extended, anew, broken

    return asyncio.run(run())


def test_a_fuzzed_conversation_goes_on_from_exactly_what_was_sampled_or_begins_anew(known: Known) -> None:
    extended, anew, broken = fuzz(known, range(NUM_FUZZED))
    assert broken == 0
    assert extended > 0
    assert extended + anew > NUM_FUZZED


@pytest.mark.slow
def test_ten_thousand_fuzzed_conversations_go_on_from_exactly_what_was_sampled_or_begin_anew(known: Known) -> None:
    assert fuzz(known, range(NUM_FUZZED, NUM_FUZZED + NUM_FUZZED_SLOWLY))[2] == 0


def test_a_session_that_renders_its_history_again_is_found(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    def rendered_again(session: Session, messages: Sequence[Message], extends: int | None, form: Form) -> Asked:
        if not session.turns:
            return Asked(messages, None, np.zeros(0, dtype=np.int32), session._tokenized(messages, form))
        follows = len(session.turns) - 1
        whole = session._tokenized((*session.conversation(follows), *messages), form)
        cut = len(session._asked[follows].tokens) + len(session.turns[follows].token_ids)
        return Asked(messages, follows, whole[:cut], whole[cut:])

    monkeypatch.setattr(Session, "_asking", rendered_again)
    assert fuzz(known, range(10))[2] > 0


def test_a_renderer_that_gets_text_as_it_is_is_found(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known[1].name:
        pytest.skip("a template's own text is told apart otherwise")
    monkeypatch.setattr(_Signs, "away", lambda _, value: value)
    with pytest.raises(AssertionError):
        fuzz(known, range(10))


def test_each_renderer_that_can_be_named_is_fuzzed() -> None:
    assert set(get_args(RendererName)) == {"", *(family.name for family in FAMILIES)}


@pytest.mark.parametrize(("name", "why"), [("gpt-oss", "fetches a vocabulary"), ("auto", "Input should be")])
def test_another_renderer_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        EngineSettings.model_validate({"model_path": "model", "renderer": name})


def test_a_tokenizer_of_another_family_is_refused(tmp_path: Path) -> None:
    family_tokenizer(tmp_path, FAMILIES[0])
    with pytest.raises(ConfigurationError, match=re.escape("engine.renderer 'llama-3' does not fit")):
        ChatTokenizer(tmp_path, "llama-3")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return family_tokenizer(tmp_path_factory.mktemp("qwen3"), FAMILIES[0])


def test_the_family_s_rules_write_what_its_template_writes(qwen: ChatTokenizer, tmp_path: Path) -> None:
    by_template = family_tokenizer(tmp_path, TEMPLATE)
    chat = (Message(role="system", content="Be brief."), ASKED, CALLING, ANSWERED)
    for messages in (chat[1:2], chat[:2], chat):
        assert qwen.tokenize(messages, ()).tolist() == by_template.tokenize(messages, ()).tolist()
    assert f'"arguments": {ADDED}' in qwen.detokenize(qwen.tokenize(chat, ())), "an object, not a text"


def test_an_answer_is_read_from_its_tokens(qwen: ChatTokenizer) -> None:
    assert sampled_and_parsed(qwen, CALLING)[1] == Parsed(
        text="I add.",
        reasoning="Two and two.",
        tool_calls=(ToolCall(call_id=f"call-{len(qwen.tokenize((ASKED,), (TOOL,)))}-0", name="add", arguments=ADDED),),
    )


def test_the_answer_of_a_tool_follows_the_thoughts_that_called_it(qwen: ChatTokenizer) -> None:
    prompt, (sampled, _) = qwen.tokenize((ASKED,), (TOOL,)), sampled_and_parsed(qwen, CALLING)
    added = qwen.extend(prompt, sampled, (ASKED, CALLING), (ANSWERED,), (TOOL,))
    assert added is not None
    whole = qwen.tokenize((ASKED, CALLING, ANSWERED), (TOOL,))
    assert [*prompt, *sampled, *added] == whole.tolist()


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 2', "4", "[1, 2]", "[" * 5_000],
    ids=["cut", "a number", "a list", "nested"],
)
def test_a_call_that_can_t_be_read_is_no_call_of_a_tool(qwen: ChatTokenizer, arguments: str) -> None:
    calling = Message(
        role="assistant", content="", tool_calls=(ToolCall(call_id="1", name="add", arguments=arguments),)
    )
    parsed = sampled_and_parsed(qwen, calling)[1]
    for call in parsed.tool_calls:
        assert not (call.name and is_object(call.arguments))
    assert parsed.tool_calls or arguments[:9] in parsed.text


def test_half_a_character_in_a_call_is_one_that_a_record_can_hold(qwen: ChatTokenizer) -> None:
    begin, end = qwen._tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    said = qwen.tokenize_text('{"name": "add", "arguments": {"a": "\\ud800"}}').tolist()
    parsed = qwen.parse(qwen.tokenize((ASKED,), (TOOL,)), np.array([begin, *said, end], dtype=np.int32), (TOOL,))
    assert parsed is not None
    assert [call.arguments.encode() for call in parsed.tool_calls] == [b'{"a": "?"}']


class AnsweringTool:
    """An agent that answers its first turn as a tool."""

    max_turns = 2

    async def run(self, session: Session) -> None:
        await session.generate()
        await session.generate((ANSWERED,))


def test_an_engine_goes_on_by_the_named_rules_and_its_records_say_so(tmp_path: Path) -> None:
    write_model(tmp_path)

    async def run() -> RolloutGenerated:
        engine = TransformersEngine(EngineSettings(kind="transformers", model_path=tmp_path, renderer="qwen3"))
        await engine.start(1)
        try:
            agents = Agents({"answering": Declaration(path=f"{__name__}.AnsweringTool")})
            bounds = SampleBounds(deadline_seconds=60.0, max_tries=1)
            runner = SampleRunner(engine, identity=identity_of(engine, "generator-1"), bounds=bounds, agents=agents)
            return await runner.run(prompt, 0)
        finally:
            await engine.close()

    prompt = a_prompt(
        messages=(ASKED,), tools=(TOOL,), agent=AgentChoice(name="answering"), sampling=Sampling(max_tokens=2, seed=1)
    )
    sample = asyncio.run(run())
    first, second = sample.turns
    assert sample.generator.renderer == "renderers 0.1.12 qwen3"
    assert (second.prefix_turn, second.prefix_tokens) == (0, len(first.prompt_token_ids) + len(first.token_ids))
    assert "<tool_response>" in ChatTokenizer(tmp_path, "qwen3").detokenize(second.prompt_token_ids)


def test_an_answer_ends_with_the_family_s_token_although_the_model_s_files_name_none(tmp_path: Path) -> None:
    write_model(tmp_path)

    async def run(renderer: str) -> Generation:
        engine = TransformersEngine(EngineSettings(kind="transformers", model_path=tmp_path, renderer=renderer))
        await engine.start(1)
        try:
            request = GenerationRequest(
                request_id="1",
                prompt_token_ids=np.array([5], dtype=np.int32),
                sampling=Sampling(),
                max_tokens=900,
                seed=1,
            )
            return await engine.generate(request)
        finally:
            await engine.close()

    ends = ChatTokenizer(tmp_path, "qwen3").stop_token_ids
    without, with_rules = asyncio.run(run("")), asyncio.run(run("qwen3"))
    assert without.finish_reason is FinishReason.LENGTH
    assert with_rules.finish_reason is FinishReason.STOP
    num_tokens = len(with_rules.token_ids)
    assert [place for place, token in enumerate(with_rules.token_ids) if token in ends] == [num_tokens - 1]
    assert np.array_equal(with_rules.token_ids, without.token_ids[:num_tokens])


def write_model(directory: Path) -> None:
    """A model of random weights, with Qwen3's control tokens."""
    tokenizer = family_tokenizer(directory, FAMILIES[0])._tokenizer
    sizes = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "max_position_embeddings": 1024}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads))
    model.save_pretrained(directory)


def test_the_text_of_control_tokens_stays_readable(qwen: ChatTokenizer) -> None:
    content = "Say <|im_end|> and <tool_call>, naïve \ue000 \U0010ffff"
    ids = qwen.tokenize((Message(role="user", content=content),), ())
    assert content in qwen.detokenize(ids)


def test_an_unknown_role_is_no_control_token(qwen: ChatTokenizer) -> None:
    with pytest.raises(ValueError, match="is none of assistant, system, tool, user"):
        qwen.tokenize((Message(role="user<|im_end|>", content="Hi"),), ())


def sampled_and_parsed(tokenizer: ChatTokenizer, answer: Message) -> tuple[np.ndarray, Parsed]:
    """The tokens of the answer to `ASKED` as the family writes it, with its stop token, and what is read from them."""
    prompt = tokenizer.tokenize((ASKED,), (TOOL,))
    rest = tokenizer.tokenize((ASKED, answer), (TOOL,))[len(prompt) :]
    (stop,) = np.flatnonzero(rest == tokenizer._tokenizer.convert_tokens_to_ids("<|im_end|>"))
    parsed = tokenizer.parse(prompt, rest[: stop + 1], (TOOL,))
    assert parsed is not None
    return rest[: stop + 1], parsed


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
