"""Answers are shown in the colors of the weight versions that sampled them, also where an update came in the middle."""

from pathlib import Path

import pytest
from rich.text import Text
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from rollstream.engines.identity import tokenizer_sha256
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.views.colors import VersionColors
from tests.harness.builders import a_generated, a_generator, a_turn

STOP = 6
VOCABULARY = {"<unk>": 0, "ce ": 2, "up": 3, "on": 4, " a": 5, "<eos>": STOP}
TOKENS = (2, 3, 4, 5, STOP)
TEXT = "ce upon a"


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """A model directory with a tokenizer."""
    tokenizer = Tokenizer(WordLevel(vocab=VOCABULARY, unk_token="<unk>"))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def an_answer(model_path: Path, *spans: tuple[int, int, int], text: str = TEXT, sha256: str = "") -> RolloutGenerated:
    """One turn of these spans (version, start, end), by the tokenizer of `model_path` or one of another hash."""
    return a_generated(
        turns=(a_turn(TOKENS, spans=spans, text=text),),
        generator=a_generator(tokenizer_sha256=sha256 or tokenizer_sha256(model_path)),
    )


def colored(text: Text) -> list[tuple[str, str]]:
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


def test_an_answer_across_an_update_changes_its_color_where_the_update_landed(model_path: Path) -> None:
    colors = VersionColors(model_path)
    text = colors.answer(an_answer(model_path, (3, 0, 2), (4, 2, 4), (5, 4, 5)))
    assert text.plain == TEXT
    assert colored(text) == [("ce up", "green"), ("on a", "cyan")]
    assert colored(colors.legend()) == [("version 3", "green"), ("version 4", "cyan"), ("version 5", "magenta")]


def test_a_version_keeps_its_color_from_answer_to_answer(model_path: Path) -> None:
    colors = VersionColors(model_path)
    colors.answer(an_answer(model_path, (3, 0, 2), (4, 2, 5)))
    assert colored(colors.answer(an_answer(model_path, (4, 0, 1), (3, 1, 5)))) == [("ce ", "cyan"), ("upon a", "green")]
    assert colors.answer(an_answer(model_path, (4, 0, 5))).style == ""


@pytest.mark.parametrize("changed", [{"sha256": "0" * 64}, {"text": "something else"}])
def test_what_another_tokenizer_wrote_stays_uncolored_and_its_spans_are_listed(
    model_path: Path, changed: dict[str, str]
) -> None:
    text = VersionColors(model_path).answer(an_answer(model_path, (3, 0, 2), (4, 2, 5), **changed))
    assert text.plain == f"{changed.get('text', TEXT)} (version 3 tokens 0 to 2, version 4 tokens 2 to 5)"
    assert colored(text) == []


@pytest.mark.parametrize("elsewhere", [None, Path("no such directory")])
def test_without_a_generator_on_this_machine_answers_are_shown_all_the_same(
    model_path: Path, elsewhere: Path | None
) -> None:
    answer = VersionColors(elsewhere).answer(an_answer(model_path, (3, 0, 2), (4, 2, 5)))
    assert answer.plain.startswith(f"{TEXT} (version 3")
