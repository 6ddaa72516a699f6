"""Whatever messages and tools do to the chat template is an error of the prompt, not of the process."""

from pathlib import Path

import pytest

from rollstream.engines.tokenizer import ChatTokenizer
from rollstream.local.tiny_model import write_tokenizer
from rollstream.schemas.prompt import Message

ASKED = (Message(role="user", content="52="),)


def a_tokenizer(directory: Path, template: str | None = None) -> ChatTokenizer:
    write_tokenizer(directory, max_length=64)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return ChatTokenizer(directory)


def test_tools_that_are_nested_too_deep_are_refused_as_a_value(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the chat template does not take these messages: "):
        a_tokenizer(tmp_path).tokenize(ASKED, ("[" * 100_000,))


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('no such role') }}", "{{ messages[0].content + 1 }}", "{{ messages[7].content.text }}"],
    ids=["template error", "type error", "undefined"],
)
def test_what_a_template_raises_is_refused_as_a_value(tmp_path: Path, template: str) -> None:
    with pytest.raises(ValueError, match="the chat template does not take these messages: "):
        a_tokenizer(tmp_path, template).tokenize(ASKED, ())
