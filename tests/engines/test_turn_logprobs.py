"""Of every turn of an agent, and every piece of a long one, the logprobs are those of the weights that spans name."""

import numpy as np
import pytest

from rollstream.schemas.prompt import AgentChoice, Message, PromptSubmitted, Sampling
from rollstream.schemas.rollout import RolloutGenerated, Status, Turn, WeightSpan
from tests.harness import engine_scenarios as scenario
from tests.harness.builders import a_prompt
from tests.harness.engine_fixtures import EngineHosts, TwoVersions
from tests.harness.engine_host import START_VERSION
from tests.harness.teacher_forcing import Logprobs, Tokens, forced_logprobs

NUM_SAMPLES = 8
PIECE_TOKENS = 9


TWO_TURNS = AgentChoice(name="two_turns")
CYCLES = AgentChoice(
    name="reasoning_cache",
    options={
        "num_reasoning_steps": "2",
        "use_think_tags": "true",
        "trains_summaries": "true",
        "reasoning_prompt_template": "{problem}{curr_summary};",
        "summarization_prompt_template": "{problem}{existing_summary}{reasoning}!",
    },
)
"""Four turns, each of which begins anew; reasoning begins after an opened tag that nobody sampled."""


def asked(agent: AgentChoice, row: int) -> PromptSubmitted:
    return a_prompt(
        row,
        messages=(Message(role="user", content="5291047386="),),
        agent=agent,
        sampling=Sampling(temperature=0.8, max_tokens=40, seed=row),
    )


# While versions change the cache of recompute alone is that of one version.
@pytest.mark.parametrize(("agent", "num_turns"), [(TWO_TURNS, 2), (CYCLES, 4)], ids=["two_turns", "cycles"])
@pytest.mark.parametrize(("name", "num_updates"), [("vllm-tied-keep", 0), ("transformers-untied-recompute", 6)])
def test_the_logprobs_of_all_turns_and_pieces_are_those_of_their_weights(
    name: str, num_updates: int, agent: AgentChoice, num_turns: int, engine_hosts: EngineHosts
) -> None:
    versions, host = engine_hosts.versions(name), engine_hosts.get(name)
    updates = [
        (START_VERSION + number, versions.new if number % 2 else versions.old) for number in range(1, num_updates + 1)
    ]
    host.run(scenario.load, START_VERSION, versions.old)
    prompts = [asked(agent, row) for row in range(NUM_SAMPLES)]
    samples = host.run(scenario.samples_while_loading, prompts, updates, PIECE_TOKENS)
    host.run(scenario.load, START_VERSION, versions.old)
    differences, spans = [], []
    for sample in samples:
        assert (sample.status, len(sample.turns)) == (Status.COMPLETED, num_turns), sample.failure
        for number, turn in enumerate(sample.turns):
            seen = np.concatenate([_prefix(sample, number), turn.prompt_token_ids])
            spans.append(len(turn.weight_spans))
            differences += [_difference(turn, seen, span, versions) for span in turn.weight_spans]
    assert np.concatenate(differences).max() < 1e-3
    assert max(len(turn.token_ids) for sample in samples for turn in sample.turns) > 2 * PIECE_TOKENS
    assert (max(spans) > 1) == bool(num_updates)


def _prefix(sample: RolloutGenerated, number: int) -> Tokens:
    """All that the model saw before the turn's own prompt."""
    turn = sample.turns[number]
    if turn.prefix_turn is None:
        return np.zeros(0, dtype=np.int32)
    before = sample.turns[turn.prefix_turn]
    seen = [_prefix(sample, turn.prefix_turn), before.prompt_token_ids, before.token_ids]
    prefix: Tokens = np.concatenate(seen)
    assert len(prefix) == turn.prefix_tokens
    return prefix


def _difference(turn: Turn, seen: Tokens, span: WeightSpan, versions: TwoVersions) -> Logprobs:
    """|recorded - computed| of the span's tokens, under the weights that it names."""
    weights = versions.new if (span.weight_version - START_VERSION) % 2 else versions.old
    prompt = np.concatenate([seen, turn.token_ids[: span.start]])
    expected = forced_logprobs(weights, prompt, turn.token_ids[span.start : span.end], 0.8)
    difference: Logprobs = np.abs(turn.behavior_logprobs[span.start : span.end] - expected)
    return difference
