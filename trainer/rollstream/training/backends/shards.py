"""A learner's snapshot between its two forms: whole tensors, as checkpoints have them, and shards of each process."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(model: torch.nn.Module, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot with whole tensors on the CPU in the first process, empty ones in the others; all must call it."""
    first_names: dict[int, str] = {}
    tied = {
        name: first_names.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    weights = {name: _gathered(one) for name, one in snapshot["model"].items() if tied.get(name, name) == name}
    # A tied head is one tensor, so that it is written once.
    weights = {name: weights[tied.get(name, name)] for name in snapshot["model"]}
    return {**snapshot, "model": weights, "optimizer": _gathered(snapshot["optimizer"])}


def sharded_snapshot(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, snapshot: Mapping[str, Any]
) -> dict[str, Any]:
    """The snapshot with each tensor divided as that of the model; raises ValueError if it is of another model."""
    own = model.state_dict()
    if own.keys() != snapshot["model"].keys():
        raise ValueError(f"its weights have other names: {sorted(own.keys() ^ snapshot['model'].keys())[:3]}")
    weights = {name: _divided_like(own[name], one) for name, one in snapshot["model"].items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {name: _divided_like(parameters[number], value) for name, value in values.items()}
        for number, values in snapshot["optimizer"]["state"].items()
    }
    return {**snapshot, "model": weights, "optimizer": {**snapshot["optimizer"], "state": state}}


def _gathered(value: Any) -> Any:
    if isinstance(value, DTensor):
        whole = value.full_tensor()
        return whole.cpu() if torch.distributed.get_rank() == 0 else whole.new_empty(0)
    if isinstance(value, dict):
        return {name: _gathered(one) for name, one in value.items()}
    return [_gathered(one) for one in value] if isinstance(value, list) else value


def _divided_like(own: Any, value: Any) -> Any:
    if not isinstance(own, DTensor) or not isinstance(value, Tensor) or not value.ndim:
        return value
    if own.shape != value.shape:
        raise ValueError(f"a tensor has shape {tuple(value.shape)}, the model's has {tuple(own.shape)}")
    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
