"""The options of a demo run, and its fixed settings, with which the reward rises within minutes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollstream.process.settings.base import Stage

STAGES_OF_DEMO: Final[tuple[Stage, ...]] = ("producer", "generator", "scorer", "trainer")
ENVIRONMENT: Final = "sort_digits"
GROUPS_PER_STEP: Final = 32
GROUP_SIZE: Final = 16
MAX_POLICY_LAG: Final = 2
MAX_TOKENS: Final = 12
NUM_STEPS: Final = 200
LEARNING_RATE: Final = 1e-4
CHECKPOINT_EVERY: Final = 10
EVAL_PROMPTS: Final = 512
# Of sampled answers. A part of 0.3 to 0.5 of the greedy answers is right then. Above 0.8 the demo would have little
# left to show.
WARM_UP_ACCURACY: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """One demo run."""

    run_dir: Path
    seed: int = 0
    num_steps: int = NUM_STEPS
    learning_rate: float = LEARNING_RATE
    kill: Stage | None = None
    keep_up: bool = True
