"""`create_pytorch_backend`: a backend from the name of a model."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

from rollstream.engines.model_names import model_directory
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.backends.pytorch import Loss, PyTorchTrainingBackend, learning_settings
from rollstream.training.learning.model_files import load_model, resolve_device
from rollstream.training.learning.settings import LearningSettings

_DEVICES = get_args(LearningSettings.model_fields["device"].annotation)


def create_pytorch_backend(
    model_name: str | Path,
    checkpoint_dir: Path,
    device_type: str = "auto",
    learning_rate: float = 1e-5,
    *,
    loss_fn: Loss = "nll",
    settings: LearningSettings | None = None,
) -> PyTorchTrainingBackend:
    """A backend with AdamW for `model_name`: a model's directory, a checkpoint's, or a name on the hub.

    `device_type`: cpu, cuda, or auto, which takes the GPU where there is one. `settings`: all else, such as schedule,
    dtype and a reference model. Raises `ConfigurationError` if there is no such model or device.
    """
    if device_type not in _DEVICES:
        raise ConfigurationError(f"device_type {device_type!r} is none of {', '.join(_DEVICES)}: choose one of these")
    own = {**learning_settings(loss_fn, settings).model_dump(exclude_unset=True), "device": device_type}
    values = LearningSettings(**{**own, "learning_rate": learning_rate})
    path = model_directory(str(model_name))

    def made() -> PyTorchTrainingBackend:
        device = resolve_device(values.device, values.threads)
        return PyTorchTrainingBackend(load_model(path, device), None, loss_fn, checkpoint_dir, device, settings=values)

    # Each thread that computes has OpenMP threads of its own, until it ends. If this one had some beside those of the
    # backend's thread, they would be more than there are cores, and libgomp would let both wait asleep: measured on two
    # cores, a step takes 1.98 s instead of 1.49.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(made).result()
