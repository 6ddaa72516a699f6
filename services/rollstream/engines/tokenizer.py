"""Turns messages into tokens and tokens into text, with a model directory's tokenizer and chat template."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Message

# The messages' contents one after another.
_PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


class ChatTokenizer:
    """Messages to token ids, and token ids to text. Without a chat template the messages' contents are joined."""

    def __init__(self, model_path: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"engine.model_path {model_path} has no readable tokenizer: {error}") from error
        self._template = self._tokenizer.chat_template or _PLAIN_TEMPLATE
        self._last: tuple[Sequence[Message], Sequence[str], NDArray[np.int32]] | None = None
        self.sha256 = tokenizer_sha256(model_path)
        self.chat_template_sha256 = chat_template_sha256(model_path)

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        """See `Engine.tokenize`. The last result is kept, because all samples of a group ask for the same prompt."""
        # `is` is enough, and cheaper than comparing long conversations: the samples of a group share one prompt.
        if self._last is None or self._last[0] is not messages or self._last[1] is not tools:
            self._last = (messages, tools, self._tokenized(messages, tools))
        return self._last[2]

    def _tokenized(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        try:
            token_ids = self._tokenizer.apply_chat_template(
                [as_chat(message) for message in messages],
                tools=[json.loads(tool) for tool in tools] or None,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except Exception as error:
            # Whatever it is (of jinja2, a TypeError, too deep a nesting), these messages and tools cause it.
            raise ValueError(f"the chat template does not take these messages: {error}") from error
        found = np.array(token_ids, dtype=np.int32)
        # All samples of a group share this array.
        found.flags.writeable = False
        return found

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        """See `Engine.detokenize`."""
        text: str = self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True)
        return text


def as_chat(message: Message) -> dict[str, Any]:
    """A message as chat templates and OpenAI's chat route take it."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        chat["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    return chat
