"""What the body of a call says, and what is refused by name."""

import json
from typing import Any

import pytest

from rollstream.generator.serve.said import (
    CHAT,
    COMPLETIONS,
    MAX_CHOICES,
    MESSAGES,
    RESPONSES,
    messages_of,
    named,
    refused,
    tools_of,
)
from rollstream.schemas.prompt import Message, ToolCall

ADD = ToolCall(call_id="call-1", name="add", arguments='{"a": 1}')


@pytest.mark.parametrize(
    ("body", "named_field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"priority": -1}, "priority"),
        ({"cache_salt": "mine"}, "cache_salt"),
        ({"request_id": "mine"}, "request_id"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"echo": True, "logprobs": 0}, "echo with logprobs"),
        ({"n": MAX_CHOICES + 1}, "choices"),
        ({"n": 17.0}, "n must be"),
        ({"n": "17"}, "n must be"),
        ({"n": 2, "prompt": ["1"] * MAX_CHOICES}, "choices"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": [{"image_url": "http://a"}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"type": "function_call_output", "output": [{"type": "input_image"}]}]}, "input_image"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            "image",
        ),
    ],
)
def test_what_no_call_may_ask_is_refused_by_its_name(body: dict[str, Any], named_field: str) -> None:
    assert named_field in (refused(body) or "")


@pytest.mark.parametrize(
    "body",
    [
        {"n": MAX_CHOICES, "messages": [{"role": "user", "content": "an image"}]},
        {"echo": True, "logprobs": None, "prompt": [1, 2, 3] * MAX_CHOICES},
        {"priority": 0, "previous_response_id": None, "use_beam_search": False, "n": None},
        {"messages": "not a list", "input": 7},
    ],
)
def test_what_nothing_speaks_against_is_left_to_the_route(body: dict[str, Any]) -> None:
    assert refused(body) is None


def test_messages_of_chat_completions_are_read() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    body = {
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "call-1"},
        ]
    }
    assert messages_of(CHAT, body) == (
        Message(role="user", content="ab"),
        Message(role="assistant", content="", tool_calls=(ADD,)),
        Message(role="tool", content="3", tool_call_id="call-1"),
    )


def test_messages_of_anthropics_route_are_read() -> None:
    used = {"type": "tool_use", "id": "call-1", "name": "add", "input": {"a": 1}}
    answered = {"type": "tool_result", "tool_use_id": "call-1", "content": [{"type": "text", "text": "3"}]}
    body = {
        "system": [{"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, used]},
            {"role": "user", "content": [answered, {"type": "text", "text": "b"}]},
        ],
    }
    assert messages_of(MESSAGES, body) == (
        Message(role="system", content="be brief"),
        Message(role="assistant", content="a", tool_calls=(ADD,)),
        Message(role="tool", content="3", tool_call_id="call-1"),
        Message(role="user", content="b"),
    )


def test_messages_of_responses_are_read() -> None:
    body = {
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "call-1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "call-1", "output": "3"},
        ],
    }
    assert messages_of(RESPONSES, body) == (
        Message(role="system", content="be brief"),
        Message(role="user", content="a"),
        Message(role="assistant", content="", tool_calls=(ADD,)),
        Message(role="tool", content="3", tool_call_id="call-1"),
    )


def test_each_prompt_of_text_completions_is_a_message() -> None:
    assert messages_of(COMPLETIONS, {"prompt": ["a", "b"]}) == (
        Message(role="user", content="a"),
        Message(role="user", content="b"),
    )
    assert messages_of(COMPLETIONS, {"prompt": [1, 2, 3]}) == (Message(role="user", content=""),)
    assert len(messages_of(COMPLETIONS, {"prompt": [[1, 2], [3]]})) == 2


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {}),
        (CHAT, {"messages": 7}),
        (CHAT, {"messages": ["a"]}),
        (CHAT, {"messages": [{"role": 7, "content": "a"}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
        (RESPONSES, {"input": [7]}),
        (COMPLETIONS, {}),
    ],
)
def test_messages_of_another_shape_are_refused_without_a_crash(route: str, body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"shape of this route|validation error"):
        messages_of(route, body)


def test_tools_are_recorded_in_one_shape() -> None:
    function = {"name": "add", "description": "a + b", "parameters": {"type": "object"}}
    wanted = {"type": "function", "function": function}
    anthropics = {"name": "add", "description": "a + b", "input_schema": {"type": "object"}}
    found = tools_of({"tools": [wanted, anthropics, {"type": "function", **function}]})
    assert [json.loads(tool) for tool in found] == [wanted] * 3


def test_the_first_id_that_is_named_counts() -> None:
    body = {"metadata": {"user_id": "", "session_id": "chat-7"}, "user": "ann"}
    assert named(body, "metadata.session_id") == "chat-7"
    assert named(body, "metadata.user_id", "user") == "ann"
    assert named({"metadata": "text", "user": 7}, "metadata.user_id", "user") == ""
