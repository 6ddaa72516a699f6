"""Environments by name: only what the settings declare is loaded, and a message says what is wrong with it."""

import builtins
import traceback
from pathlib import Path

import pytest

from rollstream.environments.load import load_environment
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BrokenEnvironmentError, UnknownEnvironmentError
from tests.harness.unruly_environment import Unruly


class Colors(Unruly):
    """An environment of a user's own."""

    name = "colors"

    def __init__(self, favorite: str = "blue") -> None:
        self.favorite = favorite


class Keyed(Colors):
    """An environment whose making shows its key."""

    def __init__(self, raised: str, api_key: str, exact: str) -> None:
        kind: type[BaseException] = getattr(builtins, raised)
        try:
            raise LookupError(f"no account of {api_key}")
        except LookupError as error:
            raise kind(f"key {api_key!r}: https://host/{api_key} refused it, exact={exact}, 410") from error


class Colorless:
    """No environment at all."""

    name = "colorless"


def declared(path: str, **options: str) -> dict[str, Declaration]:
    return {"colors": Declaration(path=path, options=options)}


def test_a_users_environment_is_loaded_by_the_name_under_which_it_is_declared() -> None:
    loaded = load_environment("colors", declared(f"{__name__}.Colors", favorite="red"))
    assert isinstance(loaded, Colors)
    assert loaded.favorite == "red"


@pytest.mark.parametrize("name", ["no_such", "os.abort", f"{__name__}.Colors", "", "x" * 3_000_000])
def test_a_name_that_is_not_declared_imports_nothing_and_is_told_what_there_is(name: str) -> None:
    with pytest.raises(
        UnknownEnvironmentError,
        match=r"of this run: by_source, colors, ifeval, math, multiple_choice, reasoning_gym, sort_digits, "
        r"structured_output, word_count; .* as ",
    ) as refused:
        load_environment(name, declared(f"{__name__}.Colors"))
    assert refused.value.exit_code == 78
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("path", ["no.such.Thing", f"{__name__}.Missing", "rollstream.no_such.Thing"])
def test_a_declared_path_that_leads_to_nothing_is_named(path: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=rf"\[environments.colors\] path = '{path}' names nothing"):
        load_environment("colors", declared(path))


@pytest.mark.parametrize(
    ("name", "declaration", "why"),
    [
        ("colors", Declaration(options={"favorite": "red"}), r"\[environments.colors\] needs its `path`"),
        ("sort_digits", Declaration(path=f"{__name__}.Colors"), r"\[environments.sort_digits\] is built in"),
    ],
)
def test_a_built_in_name_takes_no_path_and_every_other_one_needs_it(
    name: str, declaration: Declaration, why: str
) -> None:
    with pytest.raises(UnknownEnvironmentError, match=why):
        load_environment(name, {name: declaration})


def test_options_that_an_environment_does_not_take_are_refused() -> None:
    with pytest.raises(UnknownEnvironmentError, match=r"does not take its options size as .* takes no arguments"):
        load_environment("sort_digits", {"sort_digits": Declaration(options={"size": "3"})})


@pytest.mark.parametrize("raised", ["ValueError", "TypeError", "RuntimeError", "KeyError", "SystemExit"])
@pytest.mark.parametrize("secret", ["hunter2", 'it\'s a \\\\ "secret"\n', "x1"])
def test_the_values_of_options_are_in_no_error_of_a_users_code(raised: str, secret: str) -> None:
    options = {"raised": raised, "api_key": secret, "exact": "1"}
    with pytest.raises((UnknownEnvironmentError, BrokenEnvironmentError)) as refused:
        load_environment("colors", declared(f"{__name__}.Keyed", **options))
    shown = "".join(traceback.format_exception(refused.value))
    assert "https://host/*** refused it, exact=***, 410" in str(refused.value)
    for written in (secret, repr(secret), repr(repr(secret)), secret.strip("\n")):
        assert written not in shown
    assert "in __init__" in shown, "the place in the user's code is lost"


def test_what_is_no_environment_is_told_what_it_lacks() -> None:
    with pytest.raises(UnknownEnvironmentError, match="is a Colorless without rubric, sampling, tasks"):
        load_environment("colors", declared(f"{__name__}.Colorless"))


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
    with pytest.raises(BrokenEnvironmentError, match=f"'colors' raised {raised} while loading: .*; mend its code"):
        load_environment("colors", declared(f"{module}.Task"))
