"""Answers of servers that are none, and those that are: what is checked, and what text an answer in tokens has."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.engines.http.bodies import has_more_values, most_bytes
from rollstream.engines.http.engine import OpenAiHttpEngine
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
        ({"token_ids": [4] * 500}, "not 1 to 16 token ids, as were asked for, but 500 values"),
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
    "body",
    [
        b"[" + b"[]," * 10**6 + b"0]",
        b"[" + b"1.5," * 10**6 + b"0]",
        b'["' + b'","' * 10**6 + b'"]',
        b"{" + b",".join(b'"%d":0' % number for number in range(10**5)) + b"}",
        json.dumps({"choices": [{"token_ids": [4] * 70_000}]}).encode(),
    ],
    ids=["lists", "numbers", "texts", "keys", "token ids"],
)
def test_an_answer_of_more_values_than_it_can_need_is_refused_before_they_are_made(body: bytes) -> None:
    """A million empty lists are 12 times their bytes, and a second in which the process does nothing else."""
    with (
        fake_openai(planned=deque([Planned(body=body)])) as server,
        pytest.raises(EngineError, match="more values than an answer to this request can need"),
    ):
        on(an_engine(server.url), lambda engine: engine.generate(a_request(max_tokens=8192)))


def test_a_text_may_be_of_commas_and_brackets_alone() -> None:
    text = '[,{\\"' * 100_000
    with fake_openai(answer=lambda body: text) as server:
        found = on(an_engine(server.url), lambda engine: engine.generate(a_request(max_tokens=8192)))
    assert found.text == text


def test_an_answer_of_all_tokens_in_vllms_largest_form_is_read() -> None:
    size, num_prompt_tokens = 8192, 5000
    logprobs = {
        "tokens": [","] * size,
        "token_logprobs": [-1.5] * size,
        "text_offset": [7] * size,
        "top_logprobs": [{",": -1.5}] * size,
    }
    choice = {
        "text": "," * size,
        "token_ids": [151000] * size,
        "prompt_token_ids": [151000] * num_prompt_tokens,
        "logprobs": logprobs,
    }
    content = json.dumps({"choices": [choice]}).encode()
    most = most_bytes(num_prompt_tokens, size)
    assert len(content) <= most
    assert not has_more_values(content, most)


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_the_values_of_an_answer_are_counted_past_whatever_its_texts_hold(texts: list[str]) -> None:
    content = json.dumps(texts, ensure_ascii=False).encode(errors="replace")
    assert not has_more_values(content, 64 * len(texts))
    assert has_more_values(content, 64 * (len(texts) - 1))


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
