"""Marked text does what text does, and knows of each character where it comes from, whatever is done to it."""

from collections.abc import Callable
from operator import methodcaller

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.engines.marked_text import Marked, joined, own
from rollstream.engines.rendering import rendered

# Upper case comes from templates in these tests, everything else from outside.
TEXTS = st.text("ABab \n-", max_size=12)
SEPARATORS = st.sampled_from(["-", "a", "A", "--", "a-", "\n"])
CHARS = st.sampled_from([None, " ", "aA", "-\n"])
COUNTS = st.integers(-1, 3)
SLICES = st.slices(12)


def marked(text: str) -> Marked:
    return Marked(text, bytes(letter.isupper() for letter in text))


def check(found: object, wanted: object) -> None:
    """The same text, and each upper case letter, and nothing else, is a template's own."""
    assert found == wanted
    for one in found if isinstance(found, list | tuple) else [found]:
        assert isinstance(one, Marked)
        assert one.own == bytes(letter.isupper() for letter in one)


@given(TEXTS, CHARS, SEPARATORS, COUNTS, SLICES)
def test_pieces_of_a_text_know_where_they_come_from(
    text: str, chars: str | None, separator: str, count: int, part: slice
) -> None:
    for operation in (
        lambda one: one.strip(chars),
        lambda one: one.lstrip(chars),
        lambda one: one.rstrip(chars),
        lambda one: one.split(separator, count),
        lambda one: one.rsplit(separator, count),
        lambda one: one.split(None, count),
        lambda one: one.rsplit(None, count),
        lambda one: one.partition(separator),
        lambda one: one.rpartition(separator),
        methodcaller("splitlines"),
        lambda one: one.splitlines(keepends=True),
        lambda one: one.removeprefix(separator),
        lambda one: one.removesuffix(separator),
        lambda one: one[part],
        list,
        lambda one: one * 2,
    ):
        given_operation: Callable[[str], object] = operation
        check(given_operation(marked(text)), given_operation(text))


@given(TEXTS, TEXTS, SEPARATORS, COUNTS)
def test_texts_that_are_put_together_know_where_their_parts_come_from(
    text: str, other: str, separator: str, count: int
) -> None:
    check(marked(text) + marked(other), text + other)
    check(marked(text) + other.lower(), text + other.lower())
    check(text.lower() + marked(other), text.lower() + other)
    check(marked(text).join([other.lower(), marked(other)]), text.join([other.lower(), other]))
    check(marked(text).replace(separator, other.lower(), count), text.replace(separator, other.lower(), count))
    check(marked(text).replace(separator, marked(other), count), text.replace(separator, other, count))
    check(joined([marked(text), 7, other.lower()]), f"{text}7{other.lower()}")


@given(TEXTS)
def test_the_runs_of_a_text_are_the_text(text: str) -> None:
    runs = list(marked(text).runs())
    assert "".join(run for run, _ in runs) == text
    assert all(letter.isupper() is is_own for run, is_own in runs for letter in run)


@pytest.mark.parametrize(
    "change",
    [str.swapcase, str.expandtabs, lambda text: f"{text}!", lambda text: text.center(20)],
    ids=["swapcase", "expandtabs", "f-string", "center"],
)
def test_what_an_unknown_change_gives_counts_as_from_outside(change: Callable[[str], str]) -> None:
    found = change(own("<|im_end|>"))
    assert not any(is_own for _, is_own in joined([found]).runs())


@pytest.mark.parametrize(
    ("template", "theirs"),
    [
        ("A{{ messages[0].content }}B", "x"),
        ("{{ 'A' ~ messages[0].content ~ 1 }}", "x1"),
        ("{{ 'A' + messages[0].content|trim + 'B' }}", "x"),
        ("{% set ns = namespace(a='A') %}{{ ns.a }}{{ messages[0].content }}", "x"),
        ("{% macro m(a, b='B') %}{{ a }}{{ b }}C{% endmacro %}{{ m(messages[0].content) }}", "x"),
        ("{% set a %}A{{ messages[0].content }}{% endset %}{{ a|trim }}", "x"),
        ("{{ ['A', messages[0].content]|join('B') }}", "x"),
        ("{{ ('A', messages[0].content) | last }}", "x"),
        ("{% for a in ['A', 'B'] %}{{ a }}{{ messages[0].content }}{% endfor %}", "xx"),
        ("{{ {'a': 'A'}.a }}{{ messages[0].content }}", "x"),
        ("{{ messages[0].content if messages[0].content == 'x' else 'A' }}", "x"),
        ("{{ messages[0].content.replace('x', 'A') }}", "A"),
        ("{{ 'A{}'.format(messages[0].content) }}", "Ax"),
        ("{{ messages|tojson }}", '[{"content": "x"}]'),
        ("{% filter upper %}a{{ messages[0].content }}{% endfilter %}", "X"),
        ("{{ a_token }}{{ messages[0].content|safe }}", "x"),
    ],
)
def test_a_template_knows_which_text_is_not_its_own(template: str, theirs: str) -> None:
    text = rendered(template, [{"content": "x"}], [], {"a_token": "A"})
    assert "".join(run for run, is_own in text.runs() if not is_own) == theirs
