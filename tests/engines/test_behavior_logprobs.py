"""`behavior_logprobs` belong to the weights that the span names: the one proof that an update changed the policy."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from rollstream.engines.protocol import Generation
from tests.harness import engine_scenarios as scenario
from tests.harness.engine_fixtures import MAX_NUM_SEQS, EngineHosts, TwoVersions
from tests.harness.engine_host import START_VERSION
from tests.harness.teacher_forcing import Tokens, forced_logprobs, replayed_logprobs

OLD, NEW = START_VERSION, START_VERSION + 1
TEMPERATURES = (1.0, 0.7)
ENGINES = ("vllm-tied-keep", "transformers-tied-keep", "transformers-untied-recompute")
OTHER_MODE = pytest.param("vllm-untied-recompute", marks=pytest.mark.slow)
CROSSED = (
    "vllm-tied-recompute",
    "vllm-untied-keep",
    "vllm-tied-keep-compiled",
    "vllm-untied-recompute-compiled",
    "transformers-tied-recompute",
    "transformers-untied-keep",
)


@dataclass(slots=True)
class Differences:
    """|engine - reference| of many tokens, and |engine - the other weights| of the same."""

    right: list[NDArray[np.float32]] = field(default_factory=list)
    wrong: list[NDArray[np.float32]] = field(default_factory=list)

    def assert_right(self) -> None:
        """The bounds of the contract; they mean something only where the weights differ."""
        right, wrong = np.concatenate(self.right), np.concatenate(self.wrong)
        assert wrong.mean() >= 0.05
        assert right.mean() < 1e-4
        assert right.max() < 1e-3


def tokens_of(question: str) -> Tokens:
    """The prompt's tokens, in the tiny model's vocabulary."""
    from rollstream.local.tiny_model import VOCABULARY

    return np.array([VOCABULARY.index(character) for character in question], dtype=np.int32)


@pytest.fixture(scope="module")
def prompt() -> Tokens:
    """The prompt of every request but the long ones."""
    return tokens_of(scenario.QUESTION)


@pytest.mark.parametrize(
    "name", [*ENGINES, OTHER_MODE, *(pytest.param(name, marks=pytest.mark.slow) for name in CROSSED)]
)
def test_logprobs_are_those_of_the_weights_that_the_span_names(
    name: str, engine_hosts: EngineHosts, prompt: Tokens
) -> None:
    """Requests of two temperatures run side by side."""
    versions = engine_hosts.versions(name)
    asked = [{"seed": seed, "max_tokens": 150, "temperature": TEMPERATURES[seed % 2]} for seed in range(24)]
    host = engine_hosts.get(name)
    answers = host.run(scenario.load_while_generating, asked, NEW, (OLD, versions.old), versions.new)
    later = host.run(scenario.generate, asked[:8])
    host.run(scenario.load, OLD, versions.old)
    whole, after_update = Differences(), Differences()
    sampled = [*zip(TEMPERATURES * 12, answers, strict=True)]
    straddling = [pair for pair in sampled if len(pair[1].weight_spans) == 2][:12]
    assert {temperature for temperature, _ in straddling} == {*TEMPERATURES}
    for temperature, answer in [*straddling, *zip(TEMPERATURES * 4, later, strict=True)]:
        _compare_whole_spans(answer, versions, prompt, temperature, whole)
    for temperature, answer in straddling:
        _compare_after_update(answer, versions, prompt, temperature, "-keep" in name, after_update)
    whole.assert_right()
    right = np.concatenate(after_update.right)
    assert right.mean() < 1e-4
    assert right.max() < 1e-3
    # Were requests preempted under keep, or their cache kept under recompute, the other replay would fit.
    assert np.concatenate(after_update.wrong).mean() > 1e-3


@pytest.mark.parametrize("name", ["vllm-tied-keep", OTHER_MODE])
def test_a_request_that_waits_over_an_update_takes_nothing_from_the_older_weights(
    name: str, engine_hosts: EngineHosts
) -> None:
    """More requests than slots, with prompts longer than a cache block, of which earlier requests left the old keys."""
    host, versions = engine_hosts.get(name), engine_hosts.versions(name)
    asked = [{"seed": seed, "max_tokens": 60, "content": scenario.LONG_QUESTION} for seed in range(3 * MAX_NUM_SEQS)]
    answers = host.run(scenario.load_while_generating, asked, NEW, (OLD, versions.old), versions.new)
    host.run(scenario.load, OLD, versions.old)
    assert {answer.weight_spans[0].weight_version for answer in answers} == {OLD, NEW}
    _all_differences(answers, versions, tokens_of(scenario.LONG_QUESTION)).assert_right()


def test_a_plain_reload_of_tied_embeddings_fails_this_check(engine_hosts: EngineHosts, prompt: Tokens) -> None:
    host, versions = engine_hosts.get("vllm-tied-keep"), engine_hosts.versions("vllm-tied-keep")
    host.run(scenario.load, OLD, versions.old)
    problem = host.run(scenario.reload_plainly, NEW, versions.new)
    answers = host.run(scenario.generate, [{"seed": seed} for seed in range(8)])
    host.run(scenario.load, OLD, versions.old)
    found = _all_differences(answers, versions, prompt)
    assert "output head" in problem
    with pytest.raises(AssertionError):
        found.assert_right()
    assert np.concatenate(found.right).mean() > 0.05


def _all_differences(answers: Sequence[Generation], versions: TwoVersions, prompt: Tokens) -> Differences:
    found = Differences()
    for answer in answers:
        _compare_whole_spans(answer, versions, prompt, 1.0, found)
    return found


def _compare_whole_spans(
    answer: Generation, versions: TwoVersions, prompt: Tokens, temperature: float, found: Differences
) -> None:
    """The first span: everything before it came from the same weights."""
    span = answer.weight_spans[0]
    right, wrong = (versions.old, versions.new) if span.weight_version == OLD else (versions.new, versions.old)
    tokens, logged = answer.token_ids[: span.end], answer.behavior_logprobs[: span.end]
    found.right.append(np.abs(logged - forced_logprobs(right, prompt, tokens, temperature)))
    found.wrong.append(np.abs(logged - forced_logprobs(wrong, prompt, tokens, temperature)))


def _compare_after_update(
    answer: Generation, versions: TwoVersions, prompt: Tokens, temperature: float, is_kept: bool, found: Differences
) -> None:
    """The second span: on the old weights' cache (keep) or on a new one (recompute)."""
    boundary = answer.weight_spans[1].start
    logged = answer.behavior_logprobs[boundary:]
    forced = forced_logprobs(versions.new, prompt, answer.token_ids, temperature)[boundary:]
    replayed = replayed_logprobs(
        versions.old, versions.new, prompt=prompt, sampled=answer.token_ids, boundary=boundary, temperature=temperature
    )
    found.right.append(np.abs(logged - (replayed if is_kept else forced)))
    found.wrong.append(np.abs(logged - (forced if is_kept else replayed)))
