"""What `rollstream train` refuses before a model is loaded: value, bound and remedy are named."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from rollstream.local.tiny_model import write_tokenizer
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.pipeline.run import run_training
from rollstream.training.pipeline.settings import TrainSettings
from tests.harness.late import Late

torch = Late("torch")

SFT = '[sft]\nenvironment = "sort_digits"\nnum_steps = 2\nbatch_size = 4\n'
RL = '[rl]\nenvironment = "sort_digits"\nnum_steps = 2\nbatch_size = 2\n'
HTTP = '[rl.engine]\nkind = "openai_http"\n[rl.engine.http]\nurls = ["http://127.0.0.1:1"]\nmodel = "m"\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With a model that has no weights, so that whatever loads it fails in another way."""
    write_tokenizer(tmp_path, max_length=64)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "max_position_embeddings": 64}')
    return tmp_path


def begun(directory: Path, *tables: str, mode: str = "sft", top: str = "") -> None:
    path = directory / "train.toml"
    path.write_text(f'mode = "{mode}"\nmodel = "{directory}"\noutput = "{directory}/run"\n{top}\n' + "\n".join(tables))
    asyncio.run(run_training(TrainSettings.read(path), print))


@pytest.mark.parametrize(
    ("mode", "tables", "named"),
    [
        ("dpo", [SFT], ["line 1", "mode", "'sft', 'rl' or 'sft+rl'", "dpo"]),
        ("sft", [RL], ["'sft'", "[sft]"]),
        ("sft+rl", [SFT], ["'sft+rl'", "[rl]"]),
        ("sft", [SFT + "num_step = 3\n"], ["line 9", "num_step", "did you mean num_steps"]),
        ("sft", [SFT.replace("num_steps = 2", "num_steps = 0")], ["sft.num_steps", "greater than or equal to 1", "0"]),
        ("sft", ["[sft]\nnum_steps = 2\nbatch_size = 4\n"], ["dataset", "environment"]),
        ("sft", [SFT + 'dataset = "rows.jsonl"\n'], ["dataset", "environment"]),
        ("sft", [SFT + 'split = "test"\n'], ["split 'test'", "dataset"]),
        ("sft", [SFT + '[sft.learning]\nloss = "grpo"\n'], ["'grpo'", "nll"]),
        ("sft", [SFT + "[sft.learning]\nclip_low = 0.1\n"], ["clip_low 0.1", "'nll'", "dapo"]),
        ("sft", [SFT + "[sft.learning]\nminibatches = 2\n"], ["minibatches 2"]),
        ("rl", [RL + '[rl.learning]\nloss = "reinforce"\nclip_high = 0.3\n'], ["clip_high 0.3", "'reinforce'"]),
        ("rl", [RL + '[rl.learning]\nloss = "nll"\n'], ["'nll'", "SFT"]),
        ("rl", [RL + '[rl.learning]\nkl_coefficient = 0.1\nkl_in = "reward"\n'], ["kl_in", "'loss'"]),
        ("rl", [RL + 'filters = ["check_all"]\n'], ["rl.filters", "check_reward_nonzero_std"]),
        ("rl", [RL + "over_sampling_factor = 0.5\n"], ["over_sampling_factor", "greater than or equal to 1", "0.5"]),
        ("rl", [RL + "temperature = 0.0\n"], ["rl.temperature", "0.0"]),
        ("rl", [RL + '[rl.engine]\nmodel_path = "m"\n'], ["rl.engine.model_path", "leave it out"]),
        ("rl", [RL + '[rl.engine]\nkind = "sglang"\n'], ["rl.engine.kind", "'openai_http'", "sglang"]),
        (
            "rl",
            [RL + HTTP],
            ["weight_updates", "tokenizer_path"],
        ),
        ("rl", [RL.replace("sort_digits", "sort_letters")], ["'sort_letters'", "sort_digits"]),
        ("rl", [RL + 'agent = "debate"\n'], ["'debate'", "single_turn"]),
        ("sft+rl", [SFT, RL.replace("sort_digits", "sort_letters")], ["'sort_letters'"]),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(directory, mode, tables, named):
    with pytest.raises(ConfigurationError) as refused:
        begun(directory, *tables, mode=mode)
    for word in named:
        assert word in str(refused.value)


@pytest.mark.parametrize(("text", "named"), [("mode = ", "TOML"), ("[[", "TOML"), ("\x00", "TOML")])
def test_a_file_that_is_no_toml_is_refused(tmp_path, text, named):
    (tmp_path / "train.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        TrainSettings.read(tmp_path / "train.toml")


def test_a_model_that_is_not_there_is_named(directory):
    (directory / "config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        begun(directory, SFT)


@pytest.mark.parametrize(("visible", "gpu"), [("0,1", 2), ("", 0), ("GPU-7f3e", 0)])
def test_a_gpu_that_the_variable_hides_is_refused_with_both(directory, monkeypatch, visible, gpu):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigurationError) as refused:
        begun(directory, SFT, top=f"gpu_ranks = [{gpu}]")
    for word in ("gpu_ranks", f"GPU {gpu}", f"CUDA_VISIBLE_DEVICES={visible!r}"):
        assert word in str(refused.value)


def test_several_gpus_are_of_sft_alone_and_of_as_many_processes(directory, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"gpu_ranks \[0, 1\].*'rl'.*'sft'"):
        begun(directory, RL, mode="rl", top="gpu_ranks = [0, 1]")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match=r"'rl'.* 2: .*'sft'"):
        begun(directory, RL, mode="rl")


def test_gpus_without_their_processes_are_refused_with_the_command_that_starts_them(directory, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigurationError, match=r"gpu_ranks \[0, 1\].*torchrun --nproc_per_node=2"):
        begun(directory, SFT, top="gpu_ranks = [0, 1]")


@pytest.mark.parametrize("visible", [None, "3,1", "1"])
def test_a_visible_gpu_that_this_machine_lacks_is_told(directory, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "0")  # so that it is set back at the end in any case
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigurationError, match=r"gpu_ranks \[1\]"):
        begun(directory, SFT, top="gpu_ranks = [1]")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def a_checkpoint(path: Path, model: bytes = b"", sha256: str = "") -> Path:
    path.mkdir(parents=True)
    (path / "pytorch_model.bin").write_bytes(model)
    (path / "optimizer.bin").write_bytes(model)
    (path / "metadata.json").write_text(json.dumps({"step": 1, "metrics": {}, "tokenizer_sha256": sha256}))
    return path


@pytest.mark.parametrize(("mode", "place"), [("sft", "run"), ("rl", "run/rl"), ("sft+rl", "run")])
def test_a_checkpoint_of_another_tokenizer_is_refused_with_both_hashes(directory, mode, place):
    path = a_checkpoint(directory / place / "checkpoints" / "step_1", sha256="ab" * 32)
    with pytest.raises(ConfigurationError) as refused:
        begun(directory, SFT, RL, mode=mode)
    assert str(path) in str(refused.value)
    assert "ab" * 32 in str(refused.value)


def test_servers_with_another_tokenizer_are_refused(directory):
    other = directory / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    servers = f'weight_updates = "vllm"\ntokenizer_path = "{other}"\n'
    with pytest.raises(ConfigurationError, match=str(other)):
        begun(directory, RL + HTTP + servers, mode="rl")


def test_a_file_without_secrets_in_its_messages(directory):
    with pytest.raises(ConfigurationError) as refused:
        begun(directory, RL + HTTP + 'api_key = ["sk-very-secret"]\n', mode="rl")
    assert "sk-very-secret" not in str(refused.value)
