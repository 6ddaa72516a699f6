"""A batch as a loop or a user gives it: checked, and padded to tensors.

`tokens` and `loss_mask` have one row for each sample, lists or tensors of any length. `old_log_probs` and
`rollout_log_probs` have such rows too; `advantages`, `temperatures` and `max_tokens` one number a row. Without `labels`
a row is a whole sequence, and what belongs to a token stands at its place; here the model gets all but the last token,
and should predict all but the first. With `labels` this was done before: place t of each row belongs to the model's
output at place t.
`B`: rows, `L`: length of the longest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rollstream.schemas.errors import BadMessageError
from rollstream.training.learning.bounds import ModelBounds
from rollstream.training.learning.samples import TrainingSample

_IDS: Final = ("tokens", "labels")
_PER_TOKEN: Final = ("loss_mask", "old_log_probs", "rollout_log_probs")
_PER_ROW: Final = ("advantages", "temperatures", "max_tokens")
KEYS: Final = (*_IDS, *_PER_TOKEN, *_PER_ROW)


def padded(batch: Mapping[str, Any], bounds: ModelBounds, device: torch.device | None = None) -> dict[str, Tensor]:
    """The batch with `labels`, all rows padded on the right with 0: ids int64 [B, L], the others float32.

    What else it holds stays as it is, tensors on the device. Raises `BadMessageError`, which names key, row and bound,
    for what a step can't compute with, and if no token of the batch trains.
    """
    rows = {name: _rows(name, batch[name]) for name in (*_IDS, *_PER_TOKEN) if name in batch}
    _refuse_shapes(rows)
    _refuse_values(rows, bounds)
    if "labels" not in rows:
        rows["labels"] = [row[1:] for row in rows["tokens"]]
        rows["tokens"] = [row[:-1] for row in rows["tokens"]]
        rows |= {name: [row[1:] for row in rows[name]] for name in _PER_TOKEN if name in rows}
    if not any(bool(row.any()) for row in rows["loss_mask"]):
        raise BadMessageError(f"no token of the batch's {len(rows['tokens'])} rows trains: loss_mask is 0 everywhere")
    found = {name: pad_sequence(one, batch_first=True).to(device) for name, one in rows.items()}
    for name in _PER_ROW:
        if name in batch:
            found[name] = _numbers(name, batch[name], len(rows["tokens"])).to(device)
    others = {name: value for name, value in batch.items() if name not in KEYS}
    return {
        **{name: value.to(device) if isinstance(value, Tensor) else value for name, value in others.items()},
        **found,
    }


def training_samples(batch: Mapping[str, Any]) -> list[TrainingSample]:
    """The rows of a padded batch for the learner; what stands behind a row's last trained token is left out."""
    arrays = {name: batch[name].cpu().numpy() for name in KEYS if name in batch}
    return [_sample({name: rows[row] for name, rows in arrays.items()}) for row in range(len(arrays["tokens"]))]


def _sample(row: Mapping[str, Any]) -> TrainingSample:
    trained = np.flatnonzero(row["loss_mask"])
    first, end = (int(trained[0]), int(trained[-1]) + 1) if len(trained) else (0, 1)
    behavior = row.get("rollout_log_probs", np.zeros(end, dtype=np.float32))
    return TrainingSample(
        rollout_id="",
        group_id="",
        prompt_token_ids=row["tokens"][: first + 1].astype(np.int32),
        token_ids=row["labels"][first:end].astype(np.int32),
        behavior_logprobs=behavior[first:end],
        loss_mask=row["loss_mask"][first:end] > 0,
        reward=0.0,
        advantage=float(row.get("advantages", 0.0)),
        temperature=float(row.get("temperatures", 1.0)),
        max_tokens=int(row.get("max_tokens", end - first)),
        policy_lag=0,
        proximal_logprobs=row["old_log_probs"][first:end] if "old_log_probs" in row else None,
    )


def _rows(name: str, value: Any) -> list[Tensor]:
    try:
        rows = [torch.as_tensor(row) for row in value]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadMessageError(f"batch[{name!r}] must hold rows of numbers: {error}") from error
    for number, row in enumerate(rows):
        if row.ndim != 1 or (name in _IDS and row.is_floating_point() and len(row)):
            wanted = "a row of whole numbers" if name in _IDS else "a row of numbers"
            raise BadMessageError(
                f"row {number} of batch[{name!r}] must be {wanted}, got shape {tuple(row.shape)} of {row.dtype}"
            )
    return [row.to(torch.int64 if name in _IDS else torch.float32) for row in rows]


def _refuse_shapes(rows: Mapping[str, Sequence[Tensor]]) -> None:
    missing = {"tokens", "loss_mask"} - rows.keys()
    if missing or not rows["tokens"]:
        raise BadMessageError(f"a batch needs 'tokens' and 'loss_mask' of at least one row, got {_sizes(rows)}")
    least = 1 if "labels" in rows else 2
    for name, found in rows.items():
        if len(found) != len(rows["tokens"]):
            raise BadMessageError(f"a batch needs as many rows of {name!r} as of 'tokens', got {_sizes(rows)}")
        for number, (row, tokens) in enumerate(zip(found, rows["tokens"], strict=True)):
            if len(row) != len(tokens) or len(row) < least:
                raise BadMessageError(
                    f"row {number} of batch[{name!r}] has {len(row)} places and that of 'tokens' {len(tokens)}: they "
                    f"must be as long, and at least {least}"
                )


def _sizes(rows: Mapping[str, Sequence[Tensor]]) -> str:
    return ", ".join(f"{len(found)} of {name!r}" for name, found in rows.items()) or "none"


def _refuse_values(rows: Mapping[str, Sequence[Tensor]], bounds: ModelBounds) -> None:
    for name, found in rows.items():
        for number, row in enumerate(found):
            if name in _IDS and len(row) > bounds.max_tokens:
                raise BadMessageError(
                    f"row {number} of batch[{name!r}] has {len(row)} tokens, the model takes at most "
                    f"{bounds.max_tokens}: cut it, or leave it out"
                )
            if name in _IDS:
                bad = row[(row < 0) | (row >= bounds.vocab_size)]
                wanted = f"from 0 to below the model's {bounds.vocab_size}: use the model's own tokenizer"
            elif name == "loss_mask":
                bad, wanted = row[(row != 0) & (row != 1)], "0, or 1 where the token trains"
            else:
                bad, wanted = row[~row.isfinite()], "finite"
            if len(bad):
                raise BadMessageError(f"row {number} of batch[{name!r}] has {bad[0].item()}, it must be {wanted}")


def _numbers(name: str, value: Any, number_of_rows: int) -> Tensor:
    try:
        numbers = torch.as_tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadMessageError(f"batch[{name!r}] must hold one number a row: {error}") from error
    if numbers.shape != (number_of_rows,):
        raise BadMessageError(
            f"batch[{name!r}] must hold {number_of_rows} numbers, one a row, got {tuple(numbers.shape)}"
        )
    bad = ~numbers.isfinite() if name == "advantages" else ~(numbers.isfinite() & (numbers > 0))
    if bad.any():
        row = int(bad.nonzero()[0])
        wanted = "finite" if name == "advantages" else "above 0"
        raise BadMessageError(f"row {row} of batch[{name!r}] is {numbers[row].item()}, it must be {wanted}")
    return numbers
