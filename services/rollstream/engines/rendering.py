"""Renders a chat template such that it is known of each character whether it is the template's own or from outside.

The template is compiled as transformers compiles it, but its own texts are `Marked`. Whatever comes from messages and
tools stays a plain text, which a template may strip, split and look into as always. So it is known afterwards which
control tokens the template wrote (`control_tokens.py` reads only those as tokens).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from jinja2 import nodes, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import do_join
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollstream.engines.marked_text import Marked, joined, own

_MOST_CHARACTERS: Final = 2**24


def rendered(
    template: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], special_tokens: Mapping[str, str]
) -> Marked:
    """The prompt's text, with the beginning of an answer. Raises whatever the template raises."""
    text: Marked = _compiled(template)(
        messages=messages,
        tools=list(tools) or None,
        documents=None,
        add_generation_prompt=True,
        **{name: own(token) for name, token in special_tokens.items()},
    )
    return text


class WrittenConversations:
    """The newest conversations as a template wrote them, with the beginning of an answer: a next turn begins with one.

    Each is given back once. Those that nobody asks for go first, beyond `_MOST_CHARACTERS` in all.
    """

    def __init__(self) -> None:
        self._texts: dict[Hashable, Marked] = {}
        self._num_characters = 0

    def keep(self, conversation: Hashable, text: Marked) -> None:
        """`conversation`: its messages and tools."""
        self.take(conversation)
        self._texts[conversation] = text
        self._num_characters += len(text)
        while self._num_characters > _MOST_CHARACTERS:
            self.take(next(iter(self._texts)))

    def take(self, conversation: Hashable) -> Marked | None:
        """Its text, which is forgotten; None if none is kept."""
        text = self._texts.pop(conversation, None)
        self._num_characters -= len(text or "")
        return text


class _MarkingCode(CodeGenerator):
    """The code of a template, in which each constant text is the template's own."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 (jinja2's name)
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(f"environment.own({value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802 (jinja2's name)
        self.write(f"environment.own({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (jinja2's name)
        self.write("environment.concat((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(map(str, group))!r})"


class _MarkingEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class = _MarkingCode
    concat = staticmethod(joined)
    own = staticmethod(own)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it; a message's field is found at once."""
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """As the sandbox does it; its questions about functions, frames and lists are not asked of a text or loop."""
        if isinstance(obj, (str, LoopContext)):
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)


@pass_eval_context
def _join(context: nodes.EvalContext, values: Any, separator: str = "", attribute: Any = None) -> str:
    text: str = do_join(context, values, joined((separator,)), attribute)
    return text


@lru_cache(maxsize=8)
def _compiled(template: str) -> Callable[..., Any]:
    """Its `render`. Filters, functions and extensions are those that transformers gives to templates."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    plain = _compile_jinja_template(template).environment
    environment = _MarkingEnvironment(
        trim_blocks=plain.trim_blocks,
        lstrip_blocks=plain.lstrip_blocks,
        extensions=[type(extension) for extension in plain.extensions.values()],
        # Lists of constants would else become one constant, whose texts nothing marks.
        optimized=False,
    )
    environment.filters.update({**plain.filters, "join": _join, "safe": str})
    environment.globals.update(plain.globals)
    return environment.from_string(template).render
