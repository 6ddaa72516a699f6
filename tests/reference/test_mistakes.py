"""Mistakes planted in our code, one at a time: the comparison with TRL finds each, or that with a plain computation."""

import inspect
import textwrap
from importlib import import_module
from operator import attrgetter
from typing import NamedTuple

import pytest

from tests.reference.comparison import Reference, rollouts


class Mistake(NamedTuple):
    """`where`: module and function in `rollstream.training.learning`; `case`: the one that must find it."""

    where: str
    right: str
    wrong: str
    case: str


MISTAKES = {
    "the logits are not divided by the temperature": Mistake(
        "policy_forward:statistics_of_logits", " / temperatures[:, None]", "", "dapo"
    ),
    "a token is predicted one place too early": Mistake(
        "packing:_microbatch", "row.num_held - 1,", "row.num_held - 2,", "dapo"
    ),
    "the mask is off by one": Mistake(
        "packing:_microbatch", "(sample.loss_mask) for", "(np.roll(sample.loss_mask, 1)) for", "dapo"
    ),
    "the result of a tool trains": Mistake(
        "samples:_sample",
        "_laid_out(turns, list(map(_versions, turns)), -1)",
        "_laid_out(turns, list(map(_versions, turns)), 0)",
        "dapo",
    ),
    "truncated samples train": Mistake(
        "samples:_sample", " & (trained.truncated or not turns[-1].is_truncated)", "", "dapo"
    ),
    "a sample without tokens does not count as a sample": Mistake(
        "normalization:token_weights", "(len(firsts) * np.max", "(np.count_nonzero(num_tokens) * np.max", "grpo"
    ),
    "the mean over tokens is one over samples": Mistake(
        "normalization:token_weights", "1.0 / num_tokens.sum()", "1.0 / len(firsts)", "dapo"
    ),
    "the longest possible samples are those that there are": Mistake(
        "normalization:token_weights", "max_tokens[firsts].sum()", "num_tokens[firsts].sum()", "dr_grpo"
    ),
    "the advantage has the wrong sign": Mistake("losses:_clipped", "loss=-batch.", "loss=batch.", "ppo"),
    "the baseline leaves the sample itself out": Mistake(
        "advantages:group_advantages", 'advantages == "rloo"', 'advantages == "group_mean"', "dapo"
    ),
    "the standard deviation is not the sample's": Mistake("advantages:_std", "ddof=1", "ddof=0", "std_of_group"),
    "the batch is scaled by groups": Mistake(
        "advantages:group_advantages", 'scale_advantages == "group"', 'scale_advantages == "batch"', "std_of_batch"
    ),
    "the bounds of the clip range are swapped": Mistake(
        "losses:_clipped",
        "ratio.clamp(1 - clip.low, 1 + clip.high)",
        "ratio.clamp(1 - clip.high, 1 + clip.low)",
        "dapo",
    ),
    "the dual clip is for good samples": Mistake(
        "losses:_clipped", "> clip.dual) & (advantages < 0)", "> clip.dual) & (advantages > 0)", "dual_clip"
    ),
    "the divergence has the wrong sign": Mistake("losses:k3", "- 1 - log_ratio", "- 1 + log_ratio", "kl"),
    "the divergence is weighed like the loss": Mistake(
        "objective:_regularized", "loss = loss + settings", "loss = loss + loss.detach() * settings", "kl"
    ),
    "the entropy is made small": Mistake(
        "objective:_regularized",
        "loss - settings.entropy_coefficient",
        "loss + settings.entropy_coefficient",
        "entropy",
    ),
    "the cap is ignored": Mistake("corrections:importance", "ratio.clamp(max=cap)", "ratio", "token_cap"),
    "the weights of a sequence are those of its tokens": Mistake(
        "corrections:importance", '("sequence", "mask_sequence")', '("mask_sequence",)', "sequence_cap"
    ),
    "what is outside the bounds stays": Mistake(
        "corrections:importance", "ratio.masked_fill(is_masked, 0.0)", "ratio", "icepop"
    ),
    "the floor is ignored": Mistake("corrections:importance", "(ratio < floor) | ", "", "mask_sequence"),
    "the ratio of a sequence is the product": Mistake("losses:gspo", " / counts.clamp(min=1)", "", "gspo"),
    "a gradient flows through the weight": Mistake(
        "losses:cispo", "policy_logprobs.detach()", "policy_logprobs", "cispo"
    ),
    "accumulation divides twice": Mistake(
        "learner:Learner.forward_backward", "self._add(loss)", "self._add(loss / len(batches))", "grpo"
    ),
    "an update has the gradient of the one before too": Mistake(
        "learner:Learner._add", "self.optimizer.zero_grad(set_to_none=True)", "pass", "grpo"
    ),
    "the ratio is to the policy of now": Mistake(
        "train_step:_with_proximal", "learner.logprobs([batch])[0]", "None", "grpo"
    ),
}

MISTAKES_OF_ONES = {
    "its own reward is in the baseline": Mistake(
        "advantages:advantages_of_ones", '{"advantages": "rloo"}', '{"advantages": "group_mean"}', "dapo"
    ),
    "the baseline is that of every environment": Mistake(
        "advantages:batch_advantages", "setdefault((one, ", 'setdefault((one and "", ', "dapo"
    ),
    "it is compared with itself alone": Mistake(
        "advantages:batch_advantages", 'group if one is None else ""', "group", "dapo"
    ),
    "it is not known as one": Mistake("advantages:with_advantages", "first.compared_in for", "None for", "dapo"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_our_code_is_found(name: str, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES[name]
    plant(mistake, monkeypatch)
    # Not a number is found too.
    assert not reference.difference(mistake.case) <= 1e-6


@pytest.mark.parametrize("name", MISTAKES_OF_ONES)
def test_a_mistake_in_groups_of_one_is_found(name: str, reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES_OF_ONES[name]
    environments = rollouts.canned_ones(reference.policy)
    plant(mistake, monkeypatch)
    difference, _ = reference.difference_from_plain(mistake.case, environments, are_ones=True)
    assert not difference <= 1e-6


def plant(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    module, path = mistake.where.split(":")
    function = attrgetter(path)(import_module(f"rollstream.training.learning.{module}"))
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mistake.right) == 1, f"{mistake.where} must have {mistake.right!r} once"
    planted: dict[str, object] = {}
    exec(source.replace(mistake.right, mistake.wrong), function.__globals__, planted)
    # Whoever has imported the function by name has the mistake too.
    monkeypatch.setattr(function, "__code__", attrgetter("__code__")(planted[function.__name__]))
