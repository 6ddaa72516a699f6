"""`DataBuffer`: the prompts of RL, each once an epoch, in the order in which a producer would submit such rows."""

from collections.abc import Sequence
from reprlib import repr as shown
from typing import Any

from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import BadMessageError, ConfigurationError
from rollstream.training.types import Prompt

_STATE = ("epoch_id", "sample_offset", "seed")


class DataBuffer:
    """Hands out prompts for ever, in an order of its own each epoch, which depends on seed and epoch alone.

    Example: `DataBuffer(["What is 2+2?", "What is 3+3?"], seed=42).get_prompts(3)` begins the second epoch.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int = 42) -> None:
        """Raises `ConfigurationError` for no prompts, a prompt of another kind, or a seed that is no whole number."""
        if isinstance(prompts, str) or not len(prompts):
            raise ConfigurationError(f"prompts is {shown(prompts)}: give a list of at least one prompt")
        for row, prompt in enumerate(prompts):
            if not isinstance(prompt, str | list | dict):
                raise ConfigurationError(f"prompt {row} is {shown(prompt)}: give a text, a list of messages or a dict")
        if not _is_whole(seed):
            raise ConfigurationError(f"seed is {shown(seed)}: give a whole number")
        self.prompts = list(prompts)
        self._go_to(epoch_id=0, sample_offset=0, seed=seed)

    @property
    def position(self) -> int:
        """Prompts that were handed out since the first epoch began."""
        return self.epoch_id * len(self.prompts) + self.sample_offset

    def get_prompts(self, n: int) -> list[Prompt]:
        """The next `n` prompts, over as many epochs as that takes. Raises `ConfigurationError` for n < 1."""
        if not _is_whole(n) or n < 1:
            raise ConfigurationError(f"{shown(n)} prompts were asked for: ask for a whole number, at least 1")
        taken: list[Prompt] = []
        while len(taken) < n:
            rows = self._order[self.sample_offset : self.sample_offset + n - len(taken)]
            taken += [self.prompts[row] for row in rows]
            self.sample_offset += len(rows)
            if self.sample_offset == len(self.prompts):
                self._go_to(epoch_id=self.epoch_id + 1, sample_offset=0, seed=self.seed)
        return taken

    def save_state(self) -> dict[str, int]:
        """Where it stands, as plain data: epoch_id, sample_offset in that epoch, seed."""
        return {"epoch_id": self.epoch_id, "sample_offset": self.sample_offset, "seed": self.seed}

    def load_state(self, state: object) -> None:
        """Goes on where `save_state` was called, with its seed, over the same prompts.

        Raises `BadMessageError` for what cannot be such a state, and then changes nothing.
        """
        if not isinstance(state, dict) or set(state) != set(_STATE) or not all(_is_whole(state[key]) for key in _STATE):
            raise BadMessageError(
                f"the state of a data buffer is a whole number for each of {', '.join(_STATE)}, got {shown(state)}"
            )
        if state["epoch_id"] < 0 or not 0 <= state["sample_offset"] <= len(self.prompts):
            raise BadMessageError(
                f"the state of a data buffer is {state}, but there are {len(self.prompts)} prompts: sample_offset must "
                f"be 0 to {len(self.prompts)} and epoch_id at least 0; load it with the prompts that it was saved with"
            )
        full, offset = divmod(state["sample_offset"], len(self.prompts))
        self._go_to(epoch_id=state["epoch_id"] + full, sample_offset=offset, seed=state["seed"])

    def _go_to(self, *, epoch_id: int, sample_offset: int, seed: int) -> None:
        self.epoch_id, self.sample_offset, self.seed = epoch_id, sample_offset, seed
        [(_, self._order)] = epoch_order([len(self.prompts)], seed=seed, epoch=epoch_id)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
