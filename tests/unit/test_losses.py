"""Surrogates and normalizations by hand, and all six losses against a reference of our own in float64."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.prompt import PromptSubmitted, Sampling
from rollstream.schemas.rollout import FinishReason, Turn
from rollstream.schemas.scored import RolloutScored
from rollstream.trainer.intake.admission import AdmissionRules, Admitted, admit
from rollstream.trainer.intake.groups import Group, LogPlace, PlacedSample
from rollstream.training.learning.normalization import token_weights
from rollstream.training.learning.objective_settings import PolicyLossName
from rollstream.training.learning.plan import Minibatch
from rollstream.training.learning.samples import TrainingSample
from rollstream.training.learning.settings import LearningSettings
from tests.harness.builders import a_prompt, a_rollout, a_turn
from tests.harness.late import Late
from tests.harness.learners import train_step

torch = Late("torch")
losses = Late("rollstream.training.learning.losses")

LOSSES = get_args(PolicyLossName)


@cache
def clip():
    return losses.Clip(low=0.2, high=0.28)


def a_batch(ratios, advantages, *, samples=None, weights=None):
    """Tokens with the given ratios to an old policy whose logprobs are all log 0.5."""
    old = torch.full((len(ratios),), math.log(0.5), dtype=torch.float64)
    rows = torch.tensor(samples if samples is not None else range(len(ratios)))
    return losses.TokenBatch(
        policy_logprobs=(old + torch.log(torch.tensor(ratios, dtype=torch.float64))).requires_grad_(),
        old_logprobs=old,
        importance_weights=torch.tensor(weights or [1.0] * len(ratios), dtype=torch.float64),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        rollouts=rows,
    )


def gradient(surrogate, batch):
    surrogate(batch, clip()).loss.sum().backward()
    return batch.policy_logprobs.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.1, 2.0, -2.2),  # inside the trust region: r·A
        (1.5, 2.0, -2.56),  # clipped at 1.28
        (0.5, 2.0, -1.0),  # low ratio, good sample: the unclipped term is the smaller one
        (0.5, -2.0, 1.6),  # clipped at 0.8
        (1.5, -2.0, 3.0),  # high ratio, bad sample: unclipped
    ],
)
def test_the_clipped_loss_is_the_pessimistic_one_of_two(ratio, advantage, loss):
    assert losses.clipped(a_batch([ratio], [advantage]), clip()).loss.item() == pytest.approx(loss)


def test_clip_fractions_count_the_tokens_that_lost_their_gradient():
    batch = a_batch([1.5, 1.5, 0.5, 0.5, 1.0], [1.0, -1.0, 1.0, -1.0, 1.0])
    token_loss = losses.clipped(batch, clip())
    assert token_loss.clipped_high.tolist() == [True, False, False, False, False]
    assert token_loss.clipped_low.tolist() == [False, False, False, True, False]
    lost = gradient(losses.clipped, batch) == 0
    assert lost.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("name", LOSSES)
def test_at_ratio_one_every_loss_has_the_gradient_of_the_policy_gradient(name):
    # d/dlogp of -w·r·A at r = 1 is -w·A.
    batch = a_batch([1.0, 1.0, 1.0], [2.0, -1.0, 0.5], weights=[1.0, 1.5, 0.25])
    torch.testing.assert_close(gradient(losses.SURROGATES[name], batch), torch.tensor([-2.0, 1.5, -0.125]).double())


def test_gspo_clips_the_geometric_mean_ratio_of_the_sequence():
    # Sequence 0: sqrt(2 · 0.5) = 1, so nothing is clipped; sequence 1: sqrt(2 · 2) = 2, clipped at 1.28.
    token_loss = losses.gspo(a_batch([2.0, 0.5, 2.0, 2.0], [1.0] * 4, samples=[0, 0, 1, 1]), clip())
    torch.testing.assert_close(token_loss.loss.detach(), torch.tensor([-1.0, -1.0, -1.28, -1.28]).double())
    assert token_loss.clipped_high.tolist() == [False, False, True, True]


def test_cispo_bounds_the_weight_but_keeps_the_gradient_of_every_token():
    batch = a_batch([1.5, 0.5], [2.0, 2.0])
    torch.testing.assert_close(gradient(losses.cispo, batch), torch.tensor([-2.56, -1.0]).double())


def test_nll_is_minus_the_logprob_whatever_advantage_weight_and_ratio_are():
    batch = a_batch([1.5, 0.5], [2.0, -2.0], weights=[0.5, 3.0])
    expected = [-math.log(0.75), -math.log(0.25)]
    assert losses.nll(batch, clip()).loss.tolist() == pytest.approx(expected)
    torch.testing.assert_close(gradient(losses.nll, batch), torch.tensor([-1.0, -1.0]).double())


@pytest.mark.parametrize(
    ("normalization", "alone", "beside_truncated"),
    [
        ("dapo", [1 / 8, 1 / 8], [1 / 8, 1 / 8]),  # 2 + 6 tokens: the truncated samples have none
        ("grpo", [1 / 4, 1 / 12], [1 / 8, 1 / 24]),  # half, or of four samples a quarter, of each sequence's mean
        ("dr_grpo", [1 / 24, 1 / 24], [1 / 48, 1 / 48]),  # two, or four, samples of at most 12 tokens
    ],
)
def test_each_normalization_weighs_tokens_as_its_paper_says(normalization, alone, beside_truncated):
    for rollouts, num_tokens, expected in (
        ([0, 1], [2, 6], alone),
        ([0, 1, 2, 3], [2, 6, 0, 0], beside_truncated),
        # The second rollout is three samples, one of which does not train. It counts once.
        ([0, 1, 1, 1], [2, 1, 0, 5], [*alone, alone[1], alone[1]]),
        ([3, 1, 1, 0, 2, 0], [2, 1, 5, 0, 0, 0], [*beside_truncated, beside_truncated[1]]),
    ):
        found = token_weights(np.array(num_tokens), np.full(len(num_tokens), 12), np.array(rollouts), normalization)
        np.testing.assert_allclose(found[: len(expected)], expected)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_token_that_was_nearly_impossible_when_it_was_sampled_leaves_loss_and_gradient_finite(name, advantage):
    policy = torch.tensor([-1.0], requires_grad=True)
    batch = losses.TokenBatch(
        policy_logprobs=policy,
        old_logprobs=torch.tensor([-3e38]),
        importance_weights=torch.ones(1),
        advantages=torch.tensor([advantage]),
        rollouts=torch.tensor([0]),
    )
    loss = losses.SURROGATES[name](batch, clip()).loss.sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(policy.grad).all()


learner_module = Late("rollstream.training.learning.learner")
model_files = Late("rollstream.training.learning.model_files")

LOW, HIGH, CAP, MAX_TOKENS = 0.2, 0.28, 2.0, 12
MICROBATCH_TOKENS = 40  # three or four micro-batches
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
RANDOM = np.random.default_rng(7)


def turn(num_given: int, num_sampled: int, *, after: int = 0, finish: FinishReason = STOP) -> Turn:
    """A turn of random tokens; `after` is how many tokens of the sample lie before it."""
    return a_turn(
        RANDOM.integers(3, 60, num_sampled).tolist(),
        prompt_token_ids=RANDOM.integers(3, 60, num_given).astype(np.int32),
        behavior_logprobs=RANDOM.uniform(-5.0, -3.3, num_sampled).astype(np.float32),
        prefix_turn=0 if after else None,
        prefix_tokens=after,
        finish_reason=finish,
    )


def a_prompt_at(temperature: float, row: int) -> PromptSubmitted:
    return a_prompt(row, sampling=Sampling(temperature=temperature, max_tokens=MAX_TOKENS))


def some_groups() -> list[list[RolloutScored]]:
    warm, cool = a_prompt_at(1.0, 1), a_prompt_at(0.7, 2)
    answered = {"prompt": warm}
    return [
        [
            a_rollout(1.0, 0, turns=(turn(5, 3),), **answered),
            a_rollout(0.5, 1, turns=(turn(5, 12, finish=LENGTH),), **answered),
            a_rollout(0.0, 2, turns=(turn(5, 7), turn(3, 4, after=12)), **answered),
            a_rollout(0.25, 3, turns=(turn(5, 9),), **answered),
        ],
        [
            a_rollout(0.0, 0, turns=(turn(8, 6),), prompt=cool),
            a_rollout(1.0, 1, turns=(turn(8, 2), turn(4, 12, after=10, finish=LENGTH)), prompt=cool),
            a_rollout(None, 2, prompt=cool),
            a_rollout(1.0, 3, turns=(turn(8, 11),), prompt=cool),
        ],
    ]


GROUPS = some_groups()


def sampled_logprobs(model: Any, scored: RolloutScored) -> Any:
    """Logprobs of all sampled tokens of a rollout, in order."""
    ids: list[int] = []
    is_sampled: list[bool] = []
    for one in scored.rollout.turns:
        ids += [*one.prompt_token_ids.tolist(), *one.token_ids.tolist()]
        is_sampled += [False] * len(one.prompt_token_ids) + [True] * len(one.token_ids)
    logits = model(input_ids=torch.tensor([ids])).logits[0] / scored.rollout.prompt.sampling.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    return torch.stack([logprobs[at - 1, ids[at]] for at in range(len(ids)) if is_sampled[at]])


def reference_loss(name: str, policy: Any, proximal: Any | None) -> Any:
    """The loss of `GROUPS`; without `proximal` the ratio is policy ÷ behavior, and nothing corrects for lag."""
    sums, counts = [], []
    for group in GROUPS:
        completed = [scored for scored in group if scored.scoring.reward is not None]
        baseline = sum(scored.scoring.reward or 0.0 for scored in completed) / len(completed)
        for scored in completed:
            is_cut = scored.rollout.turns[-1].finish_reason is LENGTH
            advantage = (scored.scoring.reward or 0.0) - baseline
            losses = token_losses(name, scored, advantage, policy, proximal)
            sums.append(losses.sum() * (0.0 if is_cut else 1.0))
            counts.append(0 if is_cut else len(losses))
    if name in ("grpo", "gspo"):
        return sum(one / max(count, 1) for one, count in zip(sums, counts, strict=True)) / len(sums)  # type: ignore[return-value]
    if name == "dr_grpo":
        return sum(sums) / (len(sums) * MAX_TOKENS)  # type: ignore[return-value]
    return sum(sums) / sum(counts)  # type: ignore[return-value]


def token_losses(name: str, scored: RolloutScored, advantage: float, policy: Any, proximal: Any | None) -> Any:
    current = sampled_logprobs(policy, scored)
    behavior = torch.cat([torch.tensor(one.behavior_logprobs) for one in scored.rollout.turns]).double()
    before, weight = behavior, torch.ones_like(behavior)
    if proximal is not None:
        before = sampled_logprobs(proximal, scored).detach()
        weight = torch.minimum(torch.exp(before - behavior), torch.tensor(CAP))
    ratio = torch.exp(current - before)
    if name == "reinforce":
        return -weight * advantage * current
    if name == "cispo":
        return -weight * torch.clamp(ratio, max=1 + HIGH).detach() * advantage * current
    if name == "gspo":
        ratio = torch.exp((current - before).mean()) * torch.ones_like(before)
    return -weight * torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - LOW, 1 + HIGH) * advantage)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two policies whose logprobs differ from the behavior's and from each other's, and their directory."""
    path = tmp_path_factory.mktemp("model")
    write_tiny_model(path, seed=0, hidden=32, layers=2, heads=2, ffn=64)
    found: dict[str, Any] = {"path": path}
    for seed, name in enumerate(("policy", "proximal")):
        model = model_files.load_model(path, torch.device("cpu"))
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.data += 0.07 * torch.randn(parameter.shape, generator=generator)
        found[name] = model
    return found


def in_float64(model: Any) -> Any:
    return copy.deepcopy(model).double()


def admitted_samples() -> list[TrainingSample]:
    """The samples of `GROUPS` as the trainer takes them in."""
    found: list[TrainingSample] = []
    for scored in GROUPS:
        group = Group(group_id=scored[0].rollout.group_id, content_hash="", group_size=len(scored))
        for one in scored:
            place = LogPlace(("demo.scored", 0), 0)
            group.samples[one.rollout.sample_index] = PlacedSample(scored=one, place=place, num_bytes=1)
        verdict = admit(group, AdmissionRules(max_policy_lag=0), lambda _: 0)
        assert isinstance(verdict, Admitted), verdict
        found += verdict.training
    return found


def settings_of(name: str, **fields: Any) -> LearningSettings:
    values = {
        "loss": name,
        **({} if name in ("cispo", "reinforce") else {"clip_low": LOW}),
        **({} if name == "reinforce" else {"clip_high": HIGH}),
        "tokens_per_microbatch": MICROBATCH_TOKENS,
        "learning_rate": 0.0,
        "max_grad_norm": 1e9,
        "device": "cpu",
        **fields,
    }
    return LearningSettings(**values)


def check_gradients(model: Any, expected: Any) -> None:
    """Each parameter's gradient is within 1e-6 of the reference's."""
    pairs: Sequence[tuple[Any, Any]] = list(zip(model.named_parameters(), expected.parameters(), strict=True))
    assert max(float(wanted.grad.abs().max()) for _, wanted in pairs) > 1e-2
    for (name, found), wanted in pairs:
        difference = float((found.grad.double() - wanted.grad).abs().max())
        assert difference <= 1e-6, f"{name} differs by {difference}"


@pytest.mark.parametrize(
    ("name", "old"),
    [(name, old) for name in LOSSES for old in ("proximal", "behavior") if (name, old) != ("reinforce", "behavior")],
)
def test_a_step_has_the_loss_and_the_gradient_of_the_reference(name: str, old: str, policies: dict[str, Any]) -> None:
    policy = copy.deepcopy(policies["policy"])
    reference = in_float64(policy)
    loss = reference_loss(name, reference, reference if old == "proximal" else None)
    torch.autograd.backward(loss)

    settings = settings_of(name, old=old)
    learner = learner_module.Learner(policy, settings, model_path=policies["path"], device=torch.device("cpu"))
    report = train_step(learner, admitted_samples(), step=0)
    assert report.loss == pytest.approx(float(loss.detach()), abs=1e-6)
    check_gradients(policy, reference)
    # The example reaches what it is for: the weight's cap, or the clip bounds.
    clipped = report.metrics["clip_fraction_low"] + report.metrics["clip_fraction_high"]
    assert (report.metrics["importance_weight_capped_ratio"] if old == "proximal" else clipped) > 0


@pytest.mark.parametrize("name", get_args(PolicyLossName))
def test_a_later_minibatch_has_the_loss_and_the_gradient_of_the_reference(name: str, policies: dict[str, Any]) -> None:
    """Behavior, proximal and current policy all differ."""
    policy, proximal = copy.deepcopy(policies["policy"]), policies["proximal"]
    reference = in_float64(policy)
    expected = reference_loss(name, reference, in_float64(proximal))
    torch.autograd.backward(expected)

    settings, device = settings_of(name), torch.device("cpu")
    learner, before = (learner_module.Learner(model, settings, device=device) for model in (policy, proximal))
    batches = learner.pack(Minibatch.of(admitted_samples(), settings.resolved_normalization))
    pairs = zip(batches, before.logprobs(batches), strict=True)
    total = learner.forward_backward([replace(batch, proximal_logprobs=logprobs) for batch, logprobs in pairs])
    assert float(total) == pytest.approx(float(expected.detach()), abs=1e-6)
    check_gradients(policy, reference)
