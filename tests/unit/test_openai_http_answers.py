"""Answers of servers that are none, and those that are: what is checked, and what text an answer in tokens has."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollstream.engines.openai_http import OpenAiHttpEngine
from rollstream.schemas.errors import EngineError
from rollstream.schemas.prompt import Sampling
from tests.harness.fake_openai import Planned, fake_openai
from tests.harness.http_engines import a_request, a_token_request, a_version, an_engine, many, on


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer."""
    return a_version(tmp_path_factory.mktemp("model"), 4)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"token_ids": None}, "no token_ids"),
        ({"token_ids": [1, -1, 1, 1]}, "not 1 to"),
        ({"token_ids": [1, 2**31, 1, 1]}, "not 1 to"),
        ({"token_ids": []}, "not 1 to"),
        ({"token_ids": [4, 1]}, "usage has 13 and 4 tokens, but there are 13 of the prompt and 2 of the answer"),
        ({"token_ids": [4] * 5000}, "not 1 to 16 token ids, as were asked for, but 5000 values"),
        ({"token_ids": [3, 3, 3, 1]}, "text '111' is not that of its token_ids, '000'"),
        ({"text": None}, "text is no text but NoneType"),
        ({"text": 7}, "text is no text but int"),
        ({"text": "999"}, "text '999' is not that of its token_ids, '111'"),
        ({"text": "11"}, "text '11' is not that of its token_ids"),
        ({"prompt_token_ids": [4]}, r"the server read another prompt than was asked: prompt_token_ids \[4\]"),
        ({"finish_reason": "length"}, "finish_reason 'length' after 4 tokens, but 16 were allowed"),
        ({"error": {"message": "out of memory"}}, "the server answered with an error: out of memory"),
        ({"logprobs": {"token_logprobs": [-0.5]}}, "not one logprob for each of its 4 tokens"),
        ({"logprobs": None}, "not one logprob"),
        ({"logprobs": {"token_logprobs": [None] * 4}}, "a logprob that is not in"),
        ({"logprobs": {"token_logprobs": [-9999.0] * 4}}, "a logprob that is not in"),
        ({"finish_reason": "abort"}, "finish_reason 'abort'"),
    ],
)
def test_tokens_that_do_not_hold_together_are_no_answer(choice: dict[str, Any], said: str, model: Path) -> None:
    with fake_openai(kind="vllm", choice=choice) as server, pytest.raises(EngineError, match=said):
        on(an_engine(server.url, tokenizer_path=model), lambda engine: engine.generate(a_token_request(engine)))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"choices": []}, "no choices"),
        ({"choice": {"message": {"content": None}}}, "neither text nor calls of tools"),
        ({"usage": {"completion_tokens": 5000}}, "usage has 5000 tokens, asked for were at most 16"),
        ({"usage": {"completion_tokens": 1.0}}, "usage has 1.0 tokens"),
        ({"choice": {"error": "overloaded"}}, "the server answered with an error: overloaded"),
        ({"choice": {"finish_reason": "content_filter"}}, "finish_reason 'content_filter'"),
        ({"choice": {"finish_reason": None}}, "finish_reason None"),
        ({"choice": {"message": "yes"}}, "message is no object but str"),
        ({"choice": {"message": {"content": 5}}}, "text is no text but int"),
        ({"choice": {"message": {"content": None}}, "usage": None}, "neither text nor calls of tools"),
        ({"choice": {"message": {"tool_calls": [{"id": "a"}]}}}, "tool_calls can't be read"),
        ({"usage": {"prompt_tokens": -1}}, "usage has -1 tokens"),
        ({"usage": {"completion_tokens": True}}, "usage has True tokens"),
        ({"usage": [7]}, "usage is no object"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_never_an_empty_text(answer: dict[str, Any], said: str) -> None:
    planned = deque([Planned(body=b'{"choices": []}')] if "choices" in answer else [])
    behavior = {name: value for name, value in answer.items() if name != "choices"}
    with fake_openai(planned=planned, **behavior) as server, pytest.raises(EngineError, match=said):
        on(an_engine(server.url), lambda engine: engine.generate(a_request()))


def test_an_answer_that_is_no_json_is_an_error() -> None:
    planned = deque([Planned(body=b"<html>gateway</html>"), Planned(body=b"[" * 50_000)])
    planned.append(Planned(body=b'{"choices": [{"message": {"content": "\\ud83d"}, "finish_reason": "stop"}]}'))
    with fake_openai(planned=planned) as server:
        for said in ("answered no JSON: '<html>gateway", "answered no JSON", "answered no JSON"):
            with pytest.raises(EngineError, match=said):
                on(an_engine(server.url), lambda engine: engine.generate(a_request()))


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": None, "reasoning_content": "Let me see"}},
        {"message": {"content": None}, "finish_reason": "length"},
    ],
)
def test_a_model_that_only_thought_has_answered_nothing(choice: dict[str, Any]) -> None:
    with fake_openai(choice=choice) as server:
        (found,) = on(an_engine(server.url), many(1))
    assert (found.text, found.reported_completion_tokens) == ("", 3)


def test_a_text_is_that_of_the_ids_up_to_what_ends_it(model: Path) -> None:
    async def generate(engine: OpenAiHttpEngine) -> str:
        stops = Sampling(temperature=0.7, stop=("5", "11"))
        return (await engine.generate(a_token_request(engine, sampling=stops))).text

    with fake_openai(kind="vllm", choice={"text": "", "token_ids": [3, 4, 4, 1]}) as server:
        assert on(an_engine(server.url, tokenizer_path=model), generate) == "0"


def test_an_answer_of_the_model_may_be_empty() -> None:
    with fake_openai(choice={"message": {"content": ""}}) as server:
        (found,) = on(an_engine(server.url), many(1))
    assert found.text == ""
    assert np.array_equal(found.token_ids, [])
