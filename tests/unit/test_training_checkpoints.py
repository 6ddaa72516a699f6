"""Checkpoints of the backends: whole or not there, the newest by number, and refused where they do not fit."""

import asyncio
import contextlib
import json
import math
import os
import shutil
import threading

import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.errors import ConfigurationError, MachineError
from rollstream.training.learning.settings import LearningSettings
from tests.harness.full_disk import room_for
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")
toys = Late("tests.harness.toy_models")
pytorch = Late("rollstream.training.backends.pytorch")
checkpoints = Late("rollstream.training.backends.checkpoints")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=32, layers=1, heads=2, ffn=64)
    return path


def a_backend(model_path, directory, **settings):
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    values = LearningSettings(**{"learning_rate": 0.01, "warmup_steps": 3, **settings})
    return contextlib.closing(pytorch.PyTorchTrainingBackend(model, None, "nll", directory, settings=values))


def a_toy(directory, model=None):
    model = model or toys.ToyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return contextlib.closing(pytorch.PyTorchTrainingBackend(model, optimizer, toys.token_mean, directory))


def losses(backend, steps):
    async def all_steps():
        found = []
        for _ in range(steps):
            found.append((await backend.forward_backward(toys.two_rows()))["loss"])
            await backend.optim_step()
        return found

    return asyncio.run(all_steps())


def saved(backend, step, metrics=None):
    return asyncio.run(backend.save_checkpoint(step, metrics or {}))


def load(backend, path):
    return asyncio.run(backend.load_checkpoint(path))


def test_a_checkpoint_has_the_documents_files_and_what_was_said_of_it(tmp_path):
    with a_toy(tmp_path / "checkpoints") as backend:
        path = saved(backend, 3, {"loss": 0.5, "buffer": {"epoch": 1}})
        assert path == tmp_path / "checkpoints" / "step_3"
        assert {file.name for file in path.iterdir()} == {"pytorch_model.bin", "optimizer.bin", "metadata.json"}
        metadata = load(backend, path)
    assert (metadata["step"], metadata["metrics"]) == (3, {"loss": 0.5, "buffer": {"epoch": 1}})


def test_metrics_that_are_not_finite_are_texts_in_a_checkpoint_as_in_the_log(tmp_path):
    with a_toy(tmp_path) as backend:
        path = saved(backend, 1, {"loss": math.nan, "grad_norm": math.inf, "lr": 0.1})
        assert load(backend, path)["metrics"] == {"loss": "NaN", "grad_norm": "Infinity", "lr": 0.1}


def test_a_restored_backend_goes_on_as_if_it_had_not_stopped(model_path, tmp_path):
    with a_backend(model_path, tmp_path) as backend:
        losses(backend, 3)
        path = saved(backend, 3)
        expected = losses(backend, 3)
    with a_backend(model_path, tmp_path) as restored:
        load(restored, path)
        assert restored.learner.num_updates == 3
        assert losses(restored, 3) == expected


def test_the_newest_checkpoint_is_that_with_the_highest_number_and_a_torn_one_does_not_count(tmp_path):
    assert checkpoints.latest_checkpoint(tmp_path / "none") is None
    with a_toy(tmp_path) as backend:
        for step in (9, 10):
            saved(backend, step)
    for torn in ("step_11", ".step_12.part", "step_x", "step_13x"):
        shutil.copytree(tmp_path / "step_9", tmp_path / torn)
    (tmp_path / "step_11" / "optimizer.bin").unlink()
    assert checkpoints.latest_checkpoint(tmp_path) == tmp_path / "step_10"


def test_a_write_that_fails_leaves_the_former_checkpoint_and_no_new_name(tmp_path):
    with a_toy(tmp_path) as backend:
        saved(backend, 1, {"try": 1})
        with pytest.raises(ValueError, match="JSON"):
            saved(backend, 1, {"try": [float("nan")]})
        broken = {**backend.learner.snapshot(), "settings": threading.Lock()}
    for step in (1, 2):
        with pytest.raises(TypeError, match="lock"):
            checkpoints.write_checkpoint(tmp_path, step, broken, {"step": step}, None)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert json.loads((tmp_path / "step_1" / "metadata.json").read_text())["metrics"] == {"try": 1}


@pytest.mark.parametrize("room", [20_000, 60_000])
def test_a_full_disk_is_told_as_one_whichever_file_meets_it_and_leaves_no_checkpoint(model_path, tmp_path, room):
    """Weights as safetensors take 50 kB, and the optimizer's state 100 kB."""
    with a_backend(model_path, tmp_path) as backend:
        losses(backend, 1)
        with room_for(room), pytest.raises(MachineError, match=r"step_1.*make room"):
            saved(backend, 1)
        assert list(tmp_path.iterdir()) == []
        assert {file.name for file in saved(backend, 1).iterdir()} >= {"model.safetensors", "optimizer.bin"}


def test_a_checkpoint_is_a_model_directory_that_engines_load(model_path, tmp_path):
    with a_backend(model_path, tmp_path, dtype="bfloat16") as backend:
        losses(backend, 1)
        path = saved(backend, 1)
        trained = backend.learner.model.state_dict()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert loaded.dtype is torch.bfloat16
    assert transformers.AutoTokenizer.from_pretrained(path)("1=").input_ids
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, trained[name].to(torch.bfloat16))
    exact = torch.load(path / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(value, exact[name]) for name, value in trained.items())


def test_a_checkpoint_of_another_tokenizer_is_refused_and_nothing_is_loaded(model_path, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(model_path, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {text: 63 - token for text, token in tokenizer["model"]["vocab"].items()}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with a_backend(other, tmp_path) as backend:
        losses(backend, 1)
        path = saved(backend, 1)
    with a_backend(model_path, tmp_path) as backend:
        before = backend.learner.model.lm_head.weight.clone()
        with pytest.raises(ConfigurationError, match="tokenizer") as refused:
            load(backend, path)
        assert str(path) in str(refused.value)
        assert torch.equal(backend.learner.model.lm_head.weight, before)


class Code:
    """Runs a command as it is unpickled."""

    def __reduce__(self):
        return os.system, ("false",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.bin"])
def test_a_pickle_with_code_is_refused_and_named(tmp_path, name):
    with a_toy(tmp_path) as backend:
        path = saved(backend, 1)
        torch.save({"weights": Code()}, path / name)
        with pytest.raises(ConfigurationError) as refused:
            load(backend, path)
    assert name in str(refused.value)
    assert "system" in str(refused.value)


def changed(path, **values):
    state = torch.load(path / "optimizer.bin", weights_only=True)
    torch.save({**state, **values}, path / "optimizer.bin")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda path: (path / "metadata.json").unlink(), "metadata.json"),
        (lambda path: (path / "metadata.json").write_text("{"), "metadata.json"),
        (lambda path: (path / "metadata.json").write_text("[]"), "step"),
        (lambda path: (path / "metadata.json").write_text("[" * 200_000), "metadata.json"),
        (lambda path: (path / "metadata.json").write_text('{"step": -1}'), "-1"),
        (lambda path: (path / "metadata.json").write_text('{"step": true}'), "True"),
        (lambda path: (path / "metadata.json").write_text(f'{{"step": {10**18}}}'), "step_1"),
        (lambda path: (path / "metadata.json").write_text('{"step": 1, "metrics": [1]}'), "metrics"),
        (lambda path: (path / "metadata.json").write_text('{"step": 1, "metrics_of_processes": 3}'), "metrics"),
        (lambda path: (path / "metadata.json").write_text('{"step": 1, "metrics_of_processes": [3]}'), "metrics"),
        (lambda path: changed(path, num_updates="x"), "integer"),
        (lambda path: changed(path, random=[]), "range"),
        (lambda path: (path / "pytorch_model.bin").write_bytes(b"PK"), "pytorch_model.bin"),
        (shutil.rmtree, "pytorch_model.bin"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_by_the_name_of_its_file(tmp_path, spoil, named):
    with a_toy(tmp_path) as backend:
        path = saved(backend, 1)
        spoil(path)
        with pytest.raises(ConfigurationError, match=named):
            load(backend, path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    with a_toy(tmp_path) as backend:
        path = saved(backend, 1)
    with a_toy(tmp_path, torch.nn.Linear(2, 2)) as backend, pytest.raises(ConfigurationError, match="this model"):
        load(backend, path)
