"""What agents did as samples: masks match who wrote what, and the ids are those of the engine."""

import asyncio

import numpy as np
import pytest

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner
from rollstream.engines.build import build_engine
from rollstream.engines.settings import EngineSettings
from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.settings.declared import Declaration
from rollstream.schemas.errors import BadMessageError, ConfigurationError, EngineError
from rollstream.schemas.prompt import AgentChoice, Message, Sampling
from rollstream.schemas.rollout import FinishReason, Status
from rollstream.training.agent_integration import AgentRollouts, samples_of
from rollstream.training.types import SampleStatus
from tests.harness import unruly_environment as unruly
from tests.harness.builders import a_failure, a_generated, a_generator, a_text_turn, a_turn

ASKED = {"role": "user", "content": "52910="}
OWN_AGENTS = {name: Declaration(path=f"tests.harness.tool_agents.{name}") for name in ("ToolUser", "Starter")}


def ids(*values):
    return np.array(values, dtype=np.int32)


def test_the_models_tokens_train_and_those_of_prompt_and_tool_do_not():
    after = a_turn((7, 8), prefix_turn=0, prefix_tokens=12, prompt_token_ids=ids(20, 21), spans=[(4, 0, 2)], text="78")
    (sample,) = samples_of(a_generated(turns=(a_turn(), after)), 0.5)
    assert sample.tokens == [9, 6, 13, 5, 4, 14, 4, 5, 6, 9, 13, 1, 20, 21, 7, 8]
    assert sample.loss_mask == [0.0] * 6 + [1.0] * 6 + [0.0] * 2 + [1.0] * 2
    assert sample.rollout_log_probs[:6] + sample.rollout_log_probs[12:14] == [0.0] * 8
    assert sample.rollout_log_probs[6:12] == [-0.125 * place for place in range(1, 7)]
    assert (sample.reward, sample.response, sample.status) == (0.5, "78", SampleStatus.COMPLETED)
    assert sample.prompt == [{"role": "user", "content": "52910="}]
    assert (sample.metadata["weight_version"], sample.metadata["temperature"], sample.metadata["max_tokens"]) == (
        3,
        1.0,
        12,
    )


def test_a_branch_is_a_sample_of_its_own_and_each_sampled_token_trains_once():
    branch = a_turn((7, 8), prefix_turn=0, prefix_tokens=8, prompt_token_ids=ids(20))
    rollout = a_generated(turns=(a_turn(), branch))
    first, second = samples_of(rollout)
    assert second.tokens == [*first.tokens[:8], 20, 7, 8]
    assert second.loss_mask == [0.0] * 9 + [1.0] * 2
    assert first.metadata["rollout_id"] == second.metadata["rollout_id"] == rollout.rollout_id
    assert (first.reward, second.reward) == (None, None)


def test_an_answer_that_was_cut_off_is_truncated_and_keeps_its_tokens():
    (sample,) = samples_of(a_generated(turns=(a_turn(finish_reason=FinishReason.LENGTH),)))
    assert (sample.status, sum(sample.loss_mask)) == (SampleStatus.TRUNCATED, 6)


@pytest.mark.parametrize(
    "fields",
    [{"turns": (a_text_turn(),)}, {"turns": (), "status": Status.FAILED, "failure": a_failure("cut off")}],
    ids=["text", "failed"],
)
def test_what_has_no_tokens_is_refused_with_its_name(fields):
    rollout = a_generated(**fields)
    with pytest.raises(BadMessageError, match=rollout.rollout_id):
        samples_of(rollout)


class NotingPool(ScoringPool):
    """Notes how many samples each batch has."""

    sizes = ()

    async def score(self, samples):
        self.sizes = (*self.sizes, len(samples))
        return await super().score(samples)


def answered(
    tmp_path,
    *prompts,
    environment="sort_digits",
    is_scored=True,
    kind="scripted",
    pool=None,
    keeps_errors=False,
    **fields,
):
    """The samples of prompts, each asked by itself, and the engine with which they were asked."""
    if not (tmp_path / "config.json").exists():
        write_tiny_model(tmp_path, seed=0, hidden=32, layers=2, heads=2, ffn=64)

    async def run():
        engine = build_engine(EngineSettings(kind=kind, model_path=tmp_path, device="cpu"))
        await engine.start(7)
        try:
            async with pool or ScoringPool(PoolBounds()) as scoring:
                runner = SampleRunner(engine, identity=a_generator(), bounds=BOUNDS, agents=Agents(OWN_AGENTS))
                values = {"sampling": Sampling(max_tokens=12, seed=1), "environment": environment}
                ask = AgentRollouts(runner, pool=scoring if is_scored else None, **{**values, **fields})
                found = await asyncio.gather(*(ask([prompt]) for prompt in prompts), return_exceptions=keeps_errors)
                return [one[0] if isinstance(one, list) else one for one in found], engine
        finally:
            await engine.close()

    return asyncio.run(run())


BOUNDS = SampleBounds(deadline_seconds=60.0, max_tries=1)
SORT = {"prompt": "52910=", "reference_answer": "01259"}


def test_an_agent_answers_and_the_environment_scores(tmp_path):
    samples, engine = answered(tmp_path, *[SORT] * 8)
    assert {sample.reward for sample in samples} == {0.0, 1.0}
    for sample in samples:
        assert sample.prompt is SORT
        assert sample.reward == float(sample.response == "01259") == sample.metadata["components"]["exact_match"]
        first = sample.loss_mask.index(1.0)
        assert engine.detokenize(ids(*sample.tokens[:first])) == "52910="
        assert engine.detokenize(ids(*sample.tokens[first:])) == sample.response
        assert sample.metadata["weight_version"] == 7


def test_answers_that_come_together_are_scored_together(tmp_path):
    pool = NotingPool(PoolBounds())
    samples, _ = answered(tmp_path, *[SORT] * 20, pool=pool)
    assert len(samples) == sum(pool.sizes) == 20
    assert len(pool.sizes) <= 3


def test_a_verifier_that_hangs_costs_its_own_answer_alone(tmp_path):
    prompts = [{"prompt": "1", "metadata": {"order": order}} for order in ("give 1", "sleep 60", "give 0.5")]
    pool = ScoringPool(PoolBounds(sample_seconds=0.5), {unruly.NAME: Declaration(path=unruly.PATH)})
    found, _ = answered(tmp_path, *prompts, environment=unruly.NAME, pool=pool, keeps_errors=True)
    assert [getattr(one, "reward", None) for one in found] == [1.0, None, 0.5]
    assert isinstance(found[1], EngineError)


def test_the_ids_are_those_that_a_real_model_sampled_however_its_text_would_be_tokenized(tmp_path):
    """A model with random weights samples control tokens too, which its text does not show."""
    samples, engine = answered(tmp_path, *["21="] * 8, is_scored=False, kind="transformers")
    drifted = 0
    for sample in samples:
        first = sample.loss_mask.index(1.0)
        assert sample.loss_mask == [0.0] * first + [1.0] * (len(sample.tokens) - first)
        assert engine.detokenize(ids(*sample.tokens[first:])) == sample.response
        again = engine.tokenize([Message(role="user", content=sample.response)], ())
        drifted += again.tolist() != sample.tokens[first:]
    assert drifted, "tokenizing the text again would have given other ids"


@pytest.mark.parametrize(
    "prompt", ["52910=", [{"role": "user", "content": "52910="}], {"messages": [{"role": "user", "content": "52910="}]}]
)
def test_a_prompt_may_be_a_text_messages_or_a_row(tmp_path, prompt):
    [sample], _ = answered(tmp_path, prompt, is_scored=False)
    assert (sample.prompt, sample.reward) == (prompt, None)
    assert sum(mask == 0 for mask in sample.loss_mask) == 6


def test_an_agent_with_a_tool_gives_one_sample_whose_tool_tokens_do_not_train(tmp_path):
    [sample], engine = answered(tmp_path, SORT, agent=AgentChoice(name="ToolUser"))
    changes = [
        place for place in range(1, len(sample.tokens)) if sample.loss_mask[place] != sample.loss_mask[place - 1]
    ]
    parts = [engine.detokenize(ids(*part)) for part in np.split(sample.tokens, changes)]
    assert (parts[0], parts[2]) == ("52910=", "30=")
    assert parts[3] == sample.response
    assert sample.loss_mask[0] == 0.0
    assert len(parts) == 4


def test_an_agent_whose_turns_branch_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'Starter'.* 2 samples"):
        answered(tmp_path, SORT, agent=AgentChoice(name="Starter"))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sampling": Sampling(top_k=5)}, "top_k"),
        ({"agent": AgentChoice(name="nobody")}, "nobody"),
        ({"agent": AgentChoice(options={"a": "b"})}, "'a'"),
    ],
)
def test_a_task_that_can_not_be_asked_ends_the_run_and_is_no_reward_of_0(tmp_path, fields, named):
    with pytest.raises(ConfigurationError, match=named):
        answered(tmp_path, SORT, **fields)


def test_a_reward_that_does_not_come_is_an_error_to_try_again_and_no_reward_of_0(tmp_path):
    with pytest.raises(EngineError, match="no reward"):
        answered(tmp_path, {"prompt": "52910="})
