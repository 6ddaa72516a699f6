"""What a record holds never steers a terminal or breaks JSON; answers have the colors of their weight versions."""

import ast
import io
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.text import Text
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from rollstream.bus.admin import TopicDescription
from rollstream.cli.status import rendered
from rollstream.engines.identity import tokenizer_sha256
from rollstream.process.terminal import escaped, say
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.rollout import RolloutGenerated
from rollstream.schemas.topics import TOPICS
from rollstream.views.colors import VersionColors
from rollstream.views.rendering import json_text, one_line
from rollstream.views.snapshot import GroupLag, Snapshot
from tests.harness.builders import a_generated, a_generator, a_prompt, a_rollout, a_turn, an_entry, applied, published

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold] [/no] \u202edesrever\r\n\x9b2J :smile:"
# What a record's ids and names may hold: no control characters.
NAME = HOSTILE.translate(dict.fromkeys((*range(32), *range(127, 160))))
ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def a_snapshot(**fields: Any) -> Snapshot:
    """A run with all topics, two producers, two generators and two scorers."""
    members: dict[str, dict[str, Any]] = {
        "producer-a": {"stage": "producer", "share": 20, "bound": 40},
        "producer-b": {"stage": "producer", "share": 20, "bound": 40},
        "generator-1": {"stage": "generator", "in_flight": 64, "tokens_per_second": 4321.0},
        "generator-2": {"stage": "generator", "in_flight": 64, "tokens_per_second": 4321.0},
    }
    topics = tuple(
        TopicDescription(name=topic.of("demo"), topic_id="x", num_partitions=4, replication=3, num_records=7)
        for topic in TOPICS
    )
    step = an_entry(metrics={"reward_mean": 0.625, "policy_lag_mean": 1.5, "policy_lag_max": 2.0, "loss": 0.01})
    lags = [("generators", "prompts"), ("scorers", "rollouts"), ("trainer", "scored"), ("generators", "eval-prompts"),
            ("scorers", "eval-rollouts"), ("generators", "serve-prompts"), ("scorers", "serve-rollouts")]  # fmt: skip
    usual: dict[str, Any] = {
        "run": "demo", "taken_at": NOW, "topics": topics, "entry": step, "step": step, "published": published(120),
        "applied": (applied(120),), "members": members, "producers": (),
        "lags": tuple(GroupLag(group=group, topic=topic, num_records=12) for group, topic in lags),
    }  # fmt: skip
    return Snapshot(**{**usual, **fields})


def lines_of(snapshot: Snapshot) -> list[str]:
    console = Console(width=80, height=24, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(rendered(snapshot))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_text_from_outside_keeps_nothing_that_steers_a_terminal() -> None:
    shown = escaped(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith(r"\x1b[31mred\x1b]0;title\x07 [bold] [/no] \u202edesrever\r\n\x9b2J")
    assert escaped("two\nlines\t\x1b", keep="\n\t") == "two\nlines\t\\x1b"
    assert escaped("größe → 5 ✓ 日本") == "größe → 5 ✓ 日本"
    assert escaped("lone \udc80") == r"lone \udc80"


@pytest.mark.parametrize(
    "record",
    [
        a_prompt(prompt_id=NAME, group_id=NAME, environment=NAME),
        a_generated(rollout_id=NAME, turns=(a_turn(text=HOSTILE),)),
        a_rollout(rollout_id=NAME),
        published(2, uri=NAME, model=NAME),
        applied(2, generator_id=NAME, error=HOSTILE),
        an_entry(EntryKind.RESTART, checkpoint=NAME),
    ],
    ids=lambda record: type(record).__name__,
)
def test_the_line_of_a_record_with_hostile_ids_is_printable(record: Any) -> None:
    with click.Context(click.Command("x")):
        result = CliRunner().invoke(click.Command("x", callback=lambda: say(one_line(record))))
    assert result.exit_code == 0, result.output
    assert result.stdout.removesuffix("\n").isprintable()


def test_status_shows_hostile_ids_as_text_and_does_not_crash() -> None:
    hostile = a_snapshot(
        members={HOSTILE: {"stage": HOSTILE, "in_flight": [HOSTILE], "tokens_per_second": "[/bold]", "share": "x"}},
        applied=(applied(3, generator_id=f"{NAME}2"),),
        published=published(3, uri=NAME),
    )
    lines = lines_of(hostile)
    assert all(line.isprintable() for line in lines)
    assert r"\x1b[31mred" in "".join(lines)


def test_a_heartbeat_of_any_length_takes_one_line_of_status() -> None:
    long = a_snapshot(members={f"{number}{'x' * 5000}": {"stage": "y" * 5000} for number in range(3)}, applied=())
    lines = lines_of(long)
    fleet = next(number for number, line in enumerate(lines) if line.startswith("fleet"))
    assert lines[fleet + 4].startswith("credit of")


def test_status_shows_reward_lag_and_fleet_within_the_first_24_lines() -> None:
    first = "\n".join(lines_of(a_snapshot())[:24])
    for expected in ("reward_mean 0.625", "policy_lag_mean 1.5", "version 120", "records behind", "eval-rollouts",
                     "generator-2", "4321", "all          40 of at most 40"):  # fmt: skip
        assert expected in first, first


def test_an_answer_with_hostile_text_keeps_its_lines_and_nothing_else() -> None:
    rollout: RolloutGenerated = a_generated(turns=(a_turn(text=f"a\n{HOSTILE}"),))
    plain = VersionColors(None).answer(rollout).plain
    assert plain.startswith("a\n\\x1b[31mred")
    assert plain.replace("\n", "").isprintable()


def test_json_is_strict_whatever_numbers_a_record_holds() -> None:
    value = {
        "a": math.inf,
        "b": [-math.inf, {"c": math.nan}],
        "d": np.array([1.0, np.inf]),
        "e": 1.5,
        "f": (True, None),
    }
    assert json.loads(json_text(value), parse_constant=pytest.fail) == {
        "a": "Infinity", "b": ["-Infinity", {"c": "NaN"}], "d": [1.0, "Infinity"], "e": 1.5, "f": [True, None],
    }  # fmt: skip
    json.loads(json_text(a_snapshot(members={"x": {"in_flight": math.nan}}).as_plain()), parse_constant=pytest.fail)


def test_commands_and_views_make_json_in_one_place_only() -> None:
    files = [path for part in ("cli", "views") for path in (ROOT / "services/rollstream" / part).glob("*.py")]
    makers = {path.name for path in files for node in ast.walk(ast.parse(path.read_text())) if _is_dumps(node)}
    # configuration.py writes values as TOML does; they come from settings, not from records.
    assert makers == {"rendering.py", "configuration.py"}


def _is_dumps(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "dumps"


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
