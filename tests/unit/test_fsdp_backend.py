"""FSDP on the CPU: two real processes over gloo train as one device does, and give each other their checkpoints."""

import asyncio
from pathlib import Path

import pytest

from rollstream.local.tiny_model import write_tiny_model
from rollstream.schemas.errors import ConfigurationError
from rollstream.training.learning.settings import LearningSettings
from tests.harness.late import Late

torch = Late("torch")
transformers = Late("transformers")
toys = Late("tests.harness.toy_models")
ranks = Late("tests.harness.fsdp_ranks")
fsdp = Late("rollstream.training.backends.fsdp")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A tiny model, and the checkpoint of a single device after some steps."""
    path = tmp_path_factory.mktemp("fsdp")
    write_tiny_model(path / "model", seed=0, hidden=32, layers=2, heads=2, ffn=64)
    with ranks.a_toy(lambda *parts: ranks.single(path / "single", *parts)) as backend:
        ranks.curve(backend, ranks.ROWS)
        asyncio.run(backend.save_checkpoint(ranks.STEPS, {}))
    return path


@pytest.fixture(scope="module")
def found(directory):
    return ranks.run_ranks(directory)


def a_single_toy(directory, *loss):
    return ranks.a_toy(lambda *parts: ranks.single(directory, *parts), *loss)


def test_two_processes_with_different_numbers_of_tokens_follow_the_curve_of_one_device(found, tmp_path):
    with a_single_toy(tmp_path) as backend:
        expected = ranks.curve(backend, ranks.ROWS)
    assert expected[-1][0] < expected[0][0] - 0.1
    for rank in found:
        torch.testing.assert_close(rank["toy"]["curve"], expected, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_a_mean_over_rows_is_one_over_the_rows_of_both(found, tmp_path):
    with a_single_toy(tmp_path, ranks.row_mean) as backend:
        expected = ranks.curve(backend, ranks.ROWS)
    for rank in found:
        torch.testing.assert_close(rank["rows"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "tolerance"), [("named", 1e-4), ("checkpointed", 1e-4), ("mixed", 0.05)])
@pytest.mark.parametrize("loss", ["nll", "grpo"])
def test_a_named_loss_follows_the_curve_of_one_device_in_each_mode(directory, found, tmp_path, kind, tolerance, loss):
    with ranks.single(tmp_path, ranks.a_language_model(directory / "model"), None, loss) as backend:
        expected = ranks.curve(backend, ranks.ROWS)
    for rank in found:
        torch.testing.assert_close(rank[kind][loss], expected, rtol=tolerance, atol=tolerance)


def test_one_device_goes_on_from_the_checkpoint_of_two_processes(found, tmp_path):
    assert found[0]["toy"]["path"] == found[1]["toy"]["path"]
    assert [rank["toy"]["loaded"]["metrics"] for rank in found] == [{"seen_by": 0}, {"seen_by": 1}]
    with a_single_toy(tmp_path) as backend:
        path = Path(found[0]["toy"]["path"])
        metadata = asyncio.run(backend.load_checkpoint(path))
        assert (metadata["step"], metadata["metrics"]) == (ranks.STEPS, {})  # what each has seen, it has not
        after = ranks.curve(backend, ranks.ROWS)
    torch.testing.assert_close(after, found[0]["toy"]["after"], rtol=1e-5, atol=1e-6)


def test_two_processes_go_on_from_the_checkpoint_of_one_device(directory, found, tmp_path):
    with a_single_toy(tmp_path) as backend:
        asyncio.run(backend.load_checkpoint(directory / "single" / f"step_{ranks.STEPS}"))
        expected = ranks.curve(backend, ranks.ROWS)
    for rank in found:
        torch.testing.assert_close(rank["resumed"], expected, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_of_two_processes_is_a_model_directory(found):
    path = Path(found[0]["mixed"]["path"])
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    assert model.dtype is torch.bfloat16
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    exact = torch.load(path / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(one, exact[name].to(torch.bfloat16)) for name, one in model.state_dict().items())
    assert transformers.AutoTokenizer.from_pretrained(path)("1=").input_ids


def test_a_batch_that_one_process_refuses_is_an_error_in_all_and_the_next_one_trains(found):
    assert "row 0 of batch['tokens']" in found[1]["refused"]["error"]
    assert "another process" in found[0]["refused"]["error"]
    for rank in found:
        torch.testing.assert_close(rank["refused"]["after"], rank["toy"]["curve"], rtol=1e-5, atol=1e-6)


def test_without_a_process_group_the_error_says_how_to_make_one():
    with pytest.raises(ConfigurationError) as refused:
        fsdp.FSDPTrainingBackend(toys.ToyModel(), None, toys.token_mean)
    assert "init_process_group" in str(refused.value)
    assert "torchrun" in str(refused.value)


def test_an_unknown_strategy_and_hidden_gpus_are_refused(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"'SHARD_ALL'.*FULL_SHARD, SHARD_GRAD_OP"):
        fsdp.FSDPConfig(sharding_strategy="SHARD_ALL")
    with pytest.raises(ConfigurationError, match="mean_over"):
        fsdp.FSDPConfig(mean_over="samples")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert [fsdp.place_among_visible(gpu) for gpu in fsdp.FSDPConfig(gpu_ranks=[2, 3]).gpu_ranks] == [0, 1]
    with pytest.raises(ConfigurationError, match=r"GPU 1.*CUDA_VISIBLE_DEVICES='2, 3'"):
        fsdp.FSDPConfig(gpu_ranks=[2, 1])


def test_a_reference_model_is_refused_since_it_would_not_be_divided(monkeypatch):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(ConfigurationError, match="kl_coefficient"):
        fsdp.FSDPTrainingBackend(None, None, "grpo", settings=LearningSettings(kl_coefficient=0.1))
