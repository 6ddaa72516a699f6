"""The shapes of work that the bench `loop` measures: the demo's, and two whose answers have given lengths."""

import string
from dataclasses import dataclass
from typing import Any, Final, Literal

from rollstream.local.demo import options, prepare
from rollstream.local.demo.options import DemoOptions
from tests.bench import chain_model, tasks

_KV_CACHE_BYTES: Final = 2**31
_COIN: Final = "coin"
_PHASES: Final = tuple(string.ascii_lowercase[start : start + 3] for start in range(0, 24, 3))
_VARIED_MEDIAN_TOKENS: Final = 60
_VARIED_MAX_TOKENS: Final = 400
_TOKENS_PER_STEP: Final = 32768
_MAX_POLICY_LAG: Final = 4
_FLIPS: Final = "01"
"""Characters of answers that go on to their limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One step's samples, and the model that answers with as many tokens as the shape says."""

    name: Literal["demo", "uniform", "varied"]
    groups_per_step: int
    max_tokens: int
    target: float
    counts: Literal["steps_per_minute", "trained_tokens_per_second"]
    """What is compared."""
    steps: int
    """Steps that are measured, unless the command says otherwise."""
    group_size: int = options.GROUP_SIZE
    chain: chain_model.Chain | None = None
    """What the model answers; None: the demo's model."""
    starts: str = ""
    """The prompts of a chain: each is one of these characters, repeated."""

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.max_tokens + 2 * tasks.PROMPT_TOKENS

    def write_model(self, demo: DemoOptions) -> None:
        """Write the model that both sides start from into the run's directory."""
        if self.chain is None:
            prepare.warm_up(demo)
        else:
            chain_model.write_chain_model(demo.run_dir / "model", self.chain, max_length=self.max_length)

    def stage_settings(self, demo: DemoOptions) -> dict[str, Any]:
        """Settings of the stages: the demo's, with this shape's samples."""
        settings = prepare.stage_settings(demo, generators_start_with=demo.run_dir / "model")
        settings["trainer"]["train_without_spread"] = True
        if self.chain is None:
            return settings
        settings |= {"groups_per_step": self.groups_per_step, "max_policy_lag": _MAX_POLICY_LAG}
        settings["environments"] = {_COIN: {"path": tasks.COIN_PATH, "options": {"starts": self.starts}}}
        sampling = {"temperature": 1.0, "max_tokens": self.max_tokens}
        settings["producer"] |= {"environment": _COIN, "group_size": self.group_size, "sampling": sampling}
        settings["generator"]["engine"] |= {"max_model_len": self.max_length, "kv_cache_bytes": _KV_CACHE_BYTES}
        # The answers' lengths are those of the chain, so a cut answer is no mistake: it trains, on both sides.
        settings["trainer"]["train_truncated"] = True
        return settings


def shape_of(name: str, tokens: int) -> Shape:
    """The shape of that name; `tokens`: of each answer, in the shape `uniform`."""
    if name == "demo":
        return Shape(
            name="demo", groups_per_step=options.GROUPS_PER_STEP, max_tokens=options.MAX_TOKENS,
            target=1.0, counts="steps_per_minute", steps=60,
        )  # fmt: skip
    if name == "uniform":
        groups = max(1, _TOKENS_PER_STEP // (options.GROUP_SIZE * tokens))
        return Shape(
            name="uniform", groups_per_step=min(options.GROUPS_PER_STEP, groups), max_tokens=tokens,
            target=0.9, counts="trained_tokens_per_second", steps=20,
            chain=chain_model.endless(_FLIPS), starts=_FLIPS,
        )  # fmt: skip
    return Shape(
        name="varied", groups_per_step=options.GROUPS_PER_STEP,
        max_tokens=_VARIED_MAX_TOKENS, target=2.5, counts="trained_tokens_per_second", steps=10,
        chain=chain_model.spread_lengths(_PHASES, _VARIED_MEDIAN_TOKENS),
        starts="".join(phases[0] for phases in _PHASES),
    )  # fmt: skip
