"""Which prompts of clients can be posed to train on."""

from typing import Any

import pytest

from rollstream.agents.posable import refuse_unposable
from rollstream.process.settings.base import StageSettings
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.prompt import AgentChoice, Purpose, Sampling
from tests.harness.builders import RUN, a_prompt

SETTINGS = StageSettings(run=RUN)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"environment": ""}, "'' is not one of the environments"),
        ({"environment": "nobody_has_it"}, "'nobody_has_it' is not one of the environments"),
        ({"agent": AgentChoice(name="undeclared")}, "'undeclared' is not one of the agents"),
        ({"group_size": 100_000}, "group_size 100000 is above 1024"),
        ({"group_size": 1}, "group_size 1: "),
        ({"sampling": Sampling(top_k=3)}, "training needs"),
        ({"sampling": Sampling(temperature=0.0)}, "training needs"),
        ({"sampling": Sampling(max_tokens=10**9)}, "max_tokens 1000000000 is above"),
        ({"purpose": Purpose.SERVE}, "purpose serve"),
        ({"weight_version": 4}, "only prompts to train on"),
        ({"group_id": "0" * 32}, "not that of its prompt_id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_prompt_that_nobody_could_train_on_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(BadMessageError, match=why):
        refuse_unposable(a_prompt(**fields), SETTINGS)


def test_a_prompt_may_name_an_environment_that_the_run_declares() -> None:
    own = {"own": Declaration(path="package.module.Own")}
    refuse_unposable(a_prompt(environment="own"), SETTINGS.model_copy(update={"environments": own}))
