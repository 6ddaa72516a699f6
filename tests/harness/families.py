"""Tokenizers with the control tokens of some families of models, each with the renderer of its name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import AddedToken

from rollstream.engines.tokenizer import ChatTokenizer
from tests.harness.chat_templates import CHATML, QWEN3, byte_level, write_chat_tokenizer

_QWEN: Final = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
_HY3: Final = ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response")

_HY3_SPECIAL: Final = ("hy_begin_of_sentence", "hy_eos", "hy_User", "hy_Assistant", "reasoning_mode")


@dataclass(frozen=True)
class Family:
    """`stops`: what ends an answer. `controls`: all of its control tokens. `most_calls` of tools in an answer."""

    name: str
    stops: tuple[str, ...]
    controls: tuple[str, ...]
    most_calls: int = 2


FAMILIES: Final = (
    Family("qwen3", ("<|im_end|>",), _QWEN),
    Family(
        "qwen3.5", ("<|im_end|>",), (*_QWEN, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    ),
    Family(
        "llama-3",
        ("<|eot_id|>", "<|eom_id|>"),
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>",
         "<|eom_id|>"),
        most_calls=1,
    ),
    Family(
        "kimi-k2",
        ("<|im_end|>",),
        (
            "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>", "<think>", "</think>",
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        ),
    ),
    Family(
        "hy3",
        ("<\uff5chy_eos:opensource\uff5c>",),
        (
            *(f"<\uff5c{name}:opensource\uff5c>" for name in _HY3_SPECIAL), "<tool_sep:opensource>",
            *(f"<{slash}{name}:opensource>" for name in _HY3 for slash in ("", "/")),
        ),
    ),
    Family(
        "glm-4.5",
        ("<|user|>", "<|observation|>", "<|endoftext|>"),
        (
            "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>",
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
            "</arg_value>",
        ),
    ),
    Family(
        "minimax-m2",
        ("[e~[",),
        ("]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
    ),
)  # fmt: skip
TEMPLATE: Final = Family("", ("<|im_end|>",), _QWEN)
"""Qwen3 with its chat template, and no renderer."""


def family_tokenizer(directory: Path, family: Family) -> ChatTokenizer:
    """Of a model of this family: as in its real one, not every control token is a special token."""
    made = byte_level()
    special = [text for text in family.controls if not text.startswith(("<think", "</", "<tool", "<arg"))]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    made.add_tokens([AddedToken(text, normalized=False) for text in family.controls])
    write_chat_tokenizer(directory, CHATML if family.name else QWEN3, made)
    return ChatTokenizer(directory, family.name)
