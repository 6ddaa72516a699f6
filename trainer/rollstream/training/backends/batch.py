"""A batch as a loop or a user gives it: checked, and padded to tensors.

`tokens` and `loss_mask` have one row for each sample, lists or tensors of any length. `old_log_probs` and
`rollout_log_probs` have such rows too; `advantages`, `temperatures` and `max_tokens` one number a row. Without `labels`
a row is a whole sequence, and what belongs to a token stands at its place; here the model gets all but the last token,
and should predict all but the first. With `labels` this was done before: place t of each row belongs to the model's
output at place t.
`B`: rows, `L`: length of the longest.
"""

from collections.abc import Mapping
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
    columns = {name: _column(name, batch[name]) for name in (*_IDS, *_PER_TOKEN) if name in batch}
    _refuse_shapes(columns, bounds)
    found = {name: values for name, (values, _) in columns.items()}
    _refuse_values(found, bounds)
    if "labels" not in found:
        tokens, lengths = columns["tokens"]
        found = {name: values[:, 1:] for name, values in found.items()}
        is_input = torch.arange(tokens.shape[1] - 1) < lengths[:, None] - 1
        found |= {"labels": found["tokens"], "tokens": tokens[:, :-1] * is_input.to(tokens.device)}
    if not found["loss_mask"].any():
        raise BadMessageError(f"no token of the batch's {len(found['tokens'])} rows trains: loss_mask is 0 everywhere")
    found = {name: values.to(device) for name, values in found.items()}
    for name in _PER_ROW:
        if name in batch:
            found[name] = _numbers(name, batch[name], len(found["tokens"])).to(device)
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


def _column(name: str, value: Any) -> tuple[Tensor, Tensor]:
    """Rows padded with 0, [B, L], and the length of each, [B]."""
    dtype = torch.int64 if name in _IDS else torch.float32
    if isinstance(value, np.ndarray | Tensor) and value.ndim == 2:
        whole = torch.as_tensor(value)
        _refuse_fractions(name, 0, whole)
        return whole.to(dtype), torch.full((len(whole),), whole.shape[1])
    try:
        rows = [torch.as_tensor(row) for row in value]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadMessageError(f"batch[{name!r}] must hold rows of numbers: {error}") from error
    for number, row in enumerate(rows):
        if row.ndim != 1:
            raise BadMessageError(f"row {number} of batch[{name!r}] must be a row, got shape {tuple(row.shape)}")
        _refuse_fractions(name, number, row)
    lengths = torch.tensor([len(row) for row in rows])
    padded_rows = pad_sequence([row.to(dtype) for row in rows], batch_first=True) if rows else torch.zeros(0, 0)
    return padded_rows, lengths


def _refuse_fractions(name: str, number: int, row: Tensor) -> None:
    if name in _IDS and row.is_floating_point() and row.numel():
        raise BadMessageError(f"row {number} of batch[{name!r}] must be whole numbers, got {row.dtype}")


def _refuse_shapes(columns: Mapping[str, tuple[Tensor, Tensor]], bounds: ModelBounds) -> None:
    sizes = ", ".join(f"{len(lengths)} of {name!r}" for name, (_, lengths) in columns.items()) or "none"
    if {"tokens", "loss_mask"} - columns.keys() or not len(columns["tokens"][1]):
        raise BadMessageError(f"a batch needs 'tokens' and 'loss_mask' of at least one row, got {sizes}")
    tokens = columns["tokens"][1]
    least = 1 if "labels" in columns else 2
    for name, (_, lengths) in columns.items():
        if len(lengths) != len(tokens):
            raise BadMessageError(f"a batch needs as many rows of {name!r} as of 'tokens', got {sizes}")
        bad = (lengths != tokens) | (lengths < least) | (lengths > bounds.max_tokens)
        if bad.any():
            row = int(bad.nonzero()[0])
            raise BadMessageError(
                f"row {row} of batch[{name!r}] has {int(lengths[row])} places and that of 'tokens' {int(tokens[row])}: "
                f"they must be as long, at least {least} and at most {bounds.max_tokens}, which the model takes"
            )


def _refuse_values(columns: Mapping[str, Tensor], bounds: ModelBounds) -> None:
    for name, values in columns.items():
        if name in _IDS:
            bad = (values < 0) | (values >= bounds.vocab_size)
            wanted = f"from 0 to below the model's {bounds.vocab_size}: use the model's own tokenizer"
        elif name == "loss_mask":
            bad, wanted = (values != 0) & (values != 1), "0, or 1 where the token trains"
        else:
            bad, wanted = ~values.isfinite(), "finite"
        if bad.any():
            row, place = bad.nonzero()[0].tolist()
            raise BadMessageError(f"row {row} of batch[{name!r}] has {values[row, place].item()}, it must be {wanted}")


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
