"""Agents by name: a prompt chooses among those that the run's settings declare, and no record imports anything."""

import traceback
from pathlib import Path

import pytest

from rollstream.agents.load import Agents
from rollstream.agents.single_turn import SingleTurn
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import ConfigurationError, FailedSampleError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.prompt import AgentChoice


class Debate(SingleTurn):
    """An agent of a user's own."""

    def __init__(self, rounds: str = "1", judge: str = "nobody") -> None:
        if not rounds.isdecimal():
            raise ValueError(f"rounds {rounds!r} is no number; the judge is {judge}")
        self.settings = (rounds, judge)


class Mute:
    """No agent at all."""


def leaving() -> Debate:
    """An agent whose making ends its process."""
    raise SystemExit("no data set")


def declared(name: str, **options: str) -> dict[str, Declaration]:
    return {"debate": Declaration(path=f"{__name__}.{name}", options=options)}


def refused(agents: Agents, name: str, **options: str) -> FailedSampleError:
    with pytest.raises(FailedSampleError) as failed:
        agents.make(AgentChoice(name=name, options=options))
    return failed.value


def test_a_declared_agent_is_made_with_the_options_of_the_settings_and_of_the_prompt() -> None:
    agent = Agents(declared("Debate", judge="me")).make(AgentChoice(name="debate", options={"rounds": "3"}))
    assert isinstance(agent, Debate)
    assert agent.settings == ("3", "me")
    assert isinstance(Agents().make(AgentChoice()), SingleTurn)


def test_a_record_that_names_code_imports_and_runs_nothing(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name in ("os.system", f"{__name__}.Debate", "", "single_turn.", "x" * 1000):
        error = refused(Agents(declared("Debate")), name, command=f"touch {ran}")
        assert error.code == FailureCode.UNKNOWN_AGENT
        known = "debate, reasoning_cache, single_turn, tools"
        assert f"is not one of the agents of this run: {known}; the run's settings" in str(error)
        assert len(str(error)) < 400
    assert not ran.exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"size": "3"}, "does not take the prompt's options size as they are: "),
        ({"rounds": "many"}, "rounds 'many' is no number"),
        ({"judge": "you"}, "a prompt cannot set judge of agent 'debate': the run's settings set it"),
    ],
)
def test_options_that_an_agent_does_not_take_or_the_settings_fix_fail_the_sample(
    options: dict[str, str], why: str
) -> None:
    error = refused(Agents(declared("Debate", judge="me")), "debate", **options)
    assert error.code == FailureCode.BAD_AGENT_OPTIONS
    assert why in str(error)
    assert refused(Agents(), "single_turn", size="3").code == FailureCode.BAD_AGENT_OPTIONS


@pytest.mark.parametrize("options", [{"rounds": "many"}, {}])
def test_what_the_settings_give_an_agent_is_in_no_error(options: dict[str, str]) -> None:
    fixed = {"judge": "hunter2"} if options else {"judge": "hunter2", "rounds": "many"}
    error = refused(Agents(declared("Debate", **fixed)), "debate", **options)
    assert "is no number; the judge is ***" in str(error)
    assert "hunter2" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("leaving", "agent 'debate' raised SystemExit when it was made: no data set"),
        ("Mute", "agent 'debate' is a Mute without run"),
    ],
)
def test_an_agent_that_cannot_be_made_or_cannot_run_fails_the_sample(name: str, why: str) -> None:
    error = refused(Agents(declared(name)), "debate")
    assert error.code == FailureCode.UNKNOWN_AGENT
    assert why in str(error)


@pytest.mark.parametrize(
    ("declarations", "why"),
    [
        ({"debate": Declaration(path="no.such.Thing")}, "'no.such.Thing' cannot be imported: ModuleNotFoundError"),
        (declared("Missing"), "cannot be imported: AttributeError"),
        ({"debate": Declaration()}, r"\[agents.debate\] needs its `path`"),
        ({"single_turn": Declaration(path="os.system")}, r"\[agents.single_turn\] is built in and has no `path`"),
    ],
)
def test_a_declaration_that_leads_to_nothing_is_refused_at_the_start(
    declarations: dict[str, Declaration], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Agents(declarations)
