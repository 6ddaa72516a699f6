"""Turns messages into tokens and tokens into text, with a model directory's tokenizer and chat template.

Text from outside (messages, tools, answers to imitate) never becomes a control token: only what the template itself
writes does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.engines.marked_text import Marked, own
from rollstream.engines.named_renderer import NamedRenderer
from rollstream.engines.protocol import Parsed
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Message

# The messages' contents one after another.
_PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_ASKED: Final = {"role": "user", "content": " What is 2 + 2?\n"}
_ANSWERED: Final = {"role": "assistant", "content": "<i>It is</i> 4."}
_PROBES: Final[Sequence[Sequence[Mapping[str, str]]]] = (
    (_ASKED,),
    ({"role": "system", "content": "Be brief."}, _ASKED, _ANSWERED, _ASKED),
)
_TOOL: Final = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {}}}

_ANSWER: Final = "d41d8cd98f00b204e980"
"""Stands for an answer. It is looked for at its place alone, so messages may hold it too."""

_MOST_NESTED: Final = 100
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
"""Texts in JSON, whose brackets nest nothing."""

# \uff5c is DeepSeek's wide bar.
_SHAPES: Final = re.compile(r"<[|\uff5c][^<>|\uff5c\s\\]{1,64}[|\uff5c]>|\[/?INST\]|<(?:start|end)_of_turn>")
"""Control tokens that begin or end a turn in the common families of models."""


class ChatTokenizer:
    """Messages to token ids, and token ids to text. Without a chat template the messages' contents are joined."""

    def __init__(self, model_path: Path, renderer: str = "") -> None:
        """`renderer`: which of the package `renderers` is used instead of the chat template; "" is none."""
        from transformers import AutoTokenizer

        from rollstream.engines.control_tokens import OutsideEncoder
        from rollstream.engines.rendering import WrittenConversations

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"engine.model_path {model_path} has no readable tokenizer: {error}") from error
        if not self._tokenizer.is_fast:
            raise ConfigurationError(
                f"{model_path} has a tokenizer without tokenizer.json, which can't keep control tokens and text from "
                "outside apart: save a fast one there"
            )
        try:
            self._encoder = OutsideEncoder(self._tokenizer.backend_tokenizer)
        except Exception as error:  # tokenizers raises nothing more exact
            raise ConfigurationError(f"the tokenizer of {model_path} can't be used: {error}") from error
        self._last: tuple[Sequence[Message], Sequence[str], NDArray[np.int32]] | None = None
        self._written = WrittenConversations()
        self.sha256 = tokenizer_sha256(model_path)
        self.chat_template_sha256 = chat_template_sha256(model_path)
        self._renderer = NamedRenderer(renderer, self._tokenizer, self._encoder) if renderer else None
        self.stop_token_ids = self._renderer.stop_token_ids if self._renderer else ()
        """What ends an answer by the rules of the family, beside what the model's own files say."""
        self.renderer = f"renderers {version('renderers')} {renderer}" if renderer else ""
        if not renderer:
            self._refuse_other_ids(model_path)

    def tokenize(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        """The prompt's tokens [P]; raises `ValueError` for messages or tools that the chat template does not take.

        The last result is kept, because all samples of a group ask for the same prompt.
        """
        # `is` is enough, and cheaper than comparing long conversations: the samples of a group share one prompt.
        if self._last is None or self._last[0] is not messages or self._last[1] is not tools:
            self._last = (messages, tools, self._tokenized(messages, tools))
        return self._last[2]

    def extend(
        self,
        prompt: NDArray[np.int32],
        sampled: NDArray[np.int32],
        before: Sequence[Message],
        messages: Sequence[Message],
        tools: Sequence[str],
    ) -> NDArray[np.int32] | None:
        """The tokens that follow `prompt` [P] and `sampled` [T], `before`'s last answer, when `messages` come next.

        What was seen stays what it was: only what follows the answer is encoded. None if that can't be: the template
        now writes the conversation in another way, without the answer's thoughts for example, or it does not go on at
        the stop token that was sampled.
        """
        try:
            if self._renderer is not None:
                told, next_ones = [json.loads(tool) for tool in tools], [as_template(one) for one in messages]
                return self._renderer.extend(prompt, sampled, next_ones, told)
            follows = self._text_after(tuple(before), tuple(messages), tuple(tools))
            return None if follows is None else self._continued(sampled, follows)
        # Whatever it is: the conversation is rendered as a whole then, and that says what is wrong.
        except Exception:  # noqa: BLE001
            return None

    def parse(self, prompt: NDArray[np.int32], sampled: NDArray[np.int32], tools: Sequence[str]) -> Parsed | None:
        """What the `sampled` [T] tokens after `prompt` [P] say, as the named renderer reads them; None without one."""
        if self._renderer is None:
            return None
        return self._renderer.parse(prompt, sampled, [json.loads(tool) for tool in tools])

    def _text_after(
        self, before: tuple[Message, ...], messages: tuple[Message, ...], tools: tuple[str, ...]
    ) -> Marked | None:
        """What the template writes after the last answer of `before`; None if it would not write that answer so."""
        told, next_ones = [json.loads(tool) for tool in tools], [as_template(one) for one in messages]
        asked, answer = [as_template(one) for one in before[:-1]], before[-1]
        head = self._written.take((before[:-1], tools)) or self._rendered(asked, told)
        marked = self._rendered([*asked, {"role": "assistant", "content": _ANSWER}, *next_ones], told)
        written = self._rendered([*asked, as_template(answer), *next_ones], told)
        self._written.keep(((*before, *messages), tools), written)
        # A template may write white space before an answer, which the model then samples by itself.
        if not (marked.startswith(head) and marked[len(head) :].lstrip().startswith(_ANSWER)):
            return None
        follows = marked[len(head) :].lstrip().removeprefix(_ANSWER)
        return follows if _keeps(written, head, answer, follows) else None

    def _continued(self, sampled: NDArray[np.int32], text: Marked) -> NDArray[np.int32] | None:
        added, last = self._encoder.encode(text), sampled[-1:]
        if not self._tokenizer.chat_template or not len(last) or not self._encoder.is_control(last[0]):
            return added
        # The model has chosen the stop token that the template writes.
        return added[1:] if len(added) and added[0] == last[0] else None

    def tokenize_text(self, text: str, *, is_own: bool = False) -> NDArray[np.int32]:
        """The tokens [N] of text alone, without template: none of them is a control token, unless it `is_own`."""
        return self._encoder.encode(own(text) if is_own else text)

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer."""
        found: int | None = self._tokenizer.eos_token_id
        return found

    def _tokenized(self, messages: Sequence[Message], tools: Sequence[str]) -> NDArray[np.int32]:
        try:
            found = self._encoded([as_template(message) for message in messages], [json.loads(tool) for tool in tools])
        except Exception as error:
            # Whatever it is (of jinja2, a TypeError, too deep a nesting), these messages and tools cause it.
            raise ValueError(f"the chat template does not take these messages: {error}") from error
        # All samples of a group share this array.
        found.flags.writeable = False
        return found

    def _encoded(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> NDArray[np.int32]:
        if self._renderer is not None:
            return self._renderer.render(chat, tools)
        return self._encoder.encode(self._rendered(chat, tools))

    def _rendered(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Marked:
        from rollstream.engines.rendering import rendered

        return rendered(self._template(tools), chat, tools, self._tokenizer.special_tokens_map)

    def _template(self, tools: Sequence[Any]) -> str:
        if not self._tokenizer.chat_template:
            return _PLAIN_TEMPLATE
        template: str = self._tokenizer.get_chat_template(None, list(tools) or None)
        return template

    def _refuse_other_ids(self, model_path: Path) -> None:
        """Raise `ConfigurationError` if text without control tokens gets other tokens than transformers gives it."""
        for chat in _PROBES:
            for tools in ([], [_TOOL]):
                try:
                    wanted = self._tokenizer.apply_chat_template(
                        list(chat),
                        tools=tools or None,
                        chat_template=self._template(tools),
                        add_generation_prompt=True,
                        return_dict=False,
                    )
                except Exception:  # noqa: BLE001 (templates refuse roles and tools with any error)
                    continue
                if self._encoded(chat, tools).tolist() != wanted:
                    raise ConfigurationError(
                        f"the chat template of {model_path} changes its own control tokens in a way that can't be told "
                        "from text from outside: write them as they are"
                    )

    def detokenize(self, token_ids: NDArray[np.int32]) -> str:
        """The text of tokens, without special ones."""
        text: str = self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True)
        return text


def _keeps(written: str, head: str, answer: Message, follows: str) -> bool:
    """Whether the conversation, as the template writes it with this answer, has all of the answer's text."""
    if not (written.startswith(head) and written.endswith(follows)):
        return False
    said = written[len(head) : len(written) - len(follows)]
    # Calls of tools are part of what was sampled, and a template writes them in its own way.
    return bool(answer.tool_calls) or said.strip() == answer.content.strip()


def control_token_in(messages: Sequence[Message], tools: Sequence[str]) -> str | None:
    """What begins or ends a turn in them, for a server that tokenizes texts by itself; None if nothing does.

    Such a server reads it as a control token, whoever wrote it. It does not tell which tokens those are, so this is
    about the common families: ChatML, Qwen, Llama 3, DeepSeek, Mistral, Gemma. Raises `ValueError` if a tool is nested
    too deep.
    """
    try:
        said = [[as_chat(message) for message in messages], [json.loads(tool) for tool in tools]]
        text = json.dumps(said, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("a tool is nested too deep") from error
    found = _SHAPES.search(text)
    return found[0] if found else None


def without_control_tokens(text: str) -> str:
    """The text without what begins or ends a turn in the common families of models."""
    while (found := _SHAPES.sub("", text)) != text:
        text = found
    return text


def as_template(message: Message) -> dict[str, Any]:
    """A message as chat templates take it: arguments of tools are objects, which they write as JSON themselves."""
    chat = as_chat(message)
    for call in chat.get("tool_calls", ()):
        call["function"]["arguments"] = _as_object(call["function"]["arguments"])
    return chat


def _as_object(arguments: str) -> Any:
    """What the JSON says; its text if it is none, or nested so deep that no template could write it again."""
    nesting = accumulate(1 if sign in "[{" else -1 for sign in re.findall(r"[][{}]", _STRINGS.sub("", arguments)))
    if max(nesting, default=0) > _MOST_NESTED:
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def as_chat(message: Message) -> dict[str, Any]:
    """A message as OpenAI's chat route takes it."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        chat["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        chat["name"] = message.name
    if message.reasoning is not None:
        chat["reasoning_content"] = message.reasoning
    return chat
