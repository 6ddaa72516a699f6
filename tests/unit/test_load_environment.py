"""Environments by name or dotted path: a message says what is wrong with one, without a traceback."""

from pathlib import Path

import pytest

from rollstream.environments.load import load_environment
from rollstream.schemas.errors import BrokenEnvironmentError, UnknownEnvironmentError
from tests.harness.unruly_environment import Unruly


class Colors(Unruly):
    """An environment of a user's own."""

    name = "colors"

    def __init__(self, favorite: str = "blue") -> None:
        self.favorite = favorite


class Colorless:
    """No environment at all."""

    name = "colorless"


def test_a_users_environment_is_loaded_by_its_dotted_path() -> None:
    loaded = load_environment(f"{__name__}.Colors", {"favorite": "red"})
    assert isinstance(loaded, Colors)
    assert loaded.favorite == "red"


@pytest.mark.parametrize(
    "name", ["no_such", "no.such.Thing", "os..Thing", ".Thing", "", f"{__name__}.Missing", "rollstream.no_such.Thing"]
)
def test_an_unknown_environment_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match="sort_digits, word_count") as refused:
        load_environment(name)
    assert refused.value.exit_code == 78


def test_options_that_an_environment_does_not_take_are_refused() -> None:
    with pytest.raises(UnknownEnvironmentError, match="does not take"):
        load_environment("sort_digits", {"size": "3"})


def test_what_is_no_environment_is_told_what_it_lacks() -> None:
    with pytest.raises(UnknownEnvironmentError, match="is a Colorless without rubric, sampling, tasks"):
        load_environment(f"{__name__}.Colorless")


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("def (", "SyntaxError"),
        ("import no_such_dependency", "ModuleNotFoundError"),
        ("raise RuntimeError('no data set')", "RuntimeError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def Task(): raise SystemExit(3)", "SystemExit"),
        ("def Task(): raise ValueError('no data set')", "ValueError"),
        ("Task = 7", "TypeError"),
    ],
)
def test_a_users_code_that_raises_while_loading_is_named_with_what_it_raised(
    code: str, raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"users_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        BrokenEnvironmentError, match=f"'{module}.Task' raised {raised} while loading: .*; mend its code"
    ):
        load_environment(f"{module}.Task")
