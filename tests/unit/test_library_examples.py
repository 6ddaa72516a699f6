"""Short programs as people write them with the training library: each one runs as it stands."""

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import pytest

from rollstream import training
from rollstream.local.tiny_model import write_tiny_model
from rollstream.training import datasets, filters, metrics
from rollstream.training.types import RLTrainingConfig, RolloutConfig, Sample, SFTTrainingConfig
from tests.harness.fake_openai import fake_openai
from tests.harness.late import Late
from tests.harness.library_programs import PROGRAMS

torch = Late("torch")
checkpoints = Late("rollstream.training.backends.checkpoints")
pytorch = Late("rollstream.training.backends.pytorch")
rl_loop = Late("rollstream.training.loops.rl_loop")
sft_loop = Late("rollstream.training.loops.sft_loop")
rl_losses = Late("rollstream.training.rl_losses")
rollout_gen = Late("rollstream.training.rollout_gen")
weight_sync = Late("rollstream.training.weight_sync")

NUM_STEPS = 100


def run(program, **names):
    """Run the program of that name with these names given; returns what it leaves."""
    code = compile(PROGRAMS[program], program, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def main():
        found = eval(code, names)
        if inspect.iscoroutine(found):
            await found

    asyncio.run(main())
    return SimpleNamespace(**{name: value for name, value in names.items() if not name.startswith("__")})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The programs write where they run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(path, seed=0, hidden=16, layers=1, heads=2, ffn=16)
    return str(path)


def a_model():
    """A module of a user's own: each token predicts the next one by a table."""
    table = torch.nn.Embedding(16, 16)
    torch.nn.init.zeros_(table.weight)
    return table


def trained():
    """A model, its optimizer and the losses that programs name."""
    model = a_model()
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.05)}


def answered(prompt, answer):
    """Token 3 is the prompt."""
    return Sample(prompt=prompt, response=str(answer), tokens=[3, answer], loss_mask=[0, 1], reward=float(answer == 7))


def cross_entropy(logits, labels, loss_mask):
    return torch.nn.functional.cross_entropy(logits[loss_mask > 0], labels[loss_mask > 0])


async def my_generate_fn(prompts):
    return [answered(prompt, number % 2 + 7) for number, prompt in enumerate(prompts)]


def test_sft_on_samples_lowers_the_loss():
    samples = [answered(f"prompt {number}", 7) for number in range(8)]
    logger = metrics.JSONLLogger(Path("logs"))
    left = run(
        "sft", num_steps=NUM_STEPS, samples=samples, loss_fn=cross_entropy, metrics_logger=logger,
        how_often={"log_every": 100},
        places={"checkpoint_dir": Path("checkpoints")}, **trained(),
    )  # fmt: skip
    logger.finish()
    assert len(left.metrics) == NUM_STEPS
    assert left.metrics[-1]["loss"] < 0.1 < left.metrics[0]["loss"]


def test_rl_raises_the_reward_and_syncs_the_weights_every_ten_steps():
    with fake_openai(kind="sglang") as server:
        left = run(
            "rl", num_steps=NUM_STEPS, prompts=["1+6="], my_generate_fn=my_generate_fn, grpo_loss=rl_losses.grpo_loss,
            sglang_url=server.url, places={"checkpoint_dir": Path("checkpoints")}, **trained(),
        )  # fmt: skip
    assert len(left.metrics) == NUM_STEPS
    assert [Path(path).name for path in server.loaded] == [f"step_{step}" for step in range(10, NUM_STEPS + 1, 10)]
    table = torch.softmax(left.model.weight, dim=-1)
    assert table[3, 7] > 0.9
    assert table[3, 8] < 0.1


def test_a_sample_and_a_batch_are_as_they_are_given():
    assert run("sample", four_tokens=[1, 2, 3, 4]).sample.num_trained_tokens == 2
    rows = {"row": [1, 2, 3, 4, 5, 6], "other_row": [1, 2, 3, 4], "facts": {"step": 1}}
    masks = {"mask": [0, 1, 1, 1, 1, 1], "other_mask": [0, 1, 1, 1]}
    assert run("batch", **rows, **masks).batch.response_lengths == [5, 3]


def test_configs_have_the_defaults_that_programs_spell_out():
    left = run("configs", my_fn=my_generate_fn)
    assert left.config.num_requested == 48
    assert left.RLTrainingConfig(num_steps=1000) == left.RLTrainingConfig(
        num_steps=1000, sync_every=10, baseline=0.0, log_every=10, checkpoint_every=100
    )
    assert left.SFTTrainingConfig(num_steps=1000, batch_size=4) == left.SFTTrainingConfig(
        num_steps=1000, batch_size=4, log_every=100, checkpoint_every=500
    )


def test_a_manager_and_a_generator_give_batches_of_32():
    prompts = [f"prompt {number}" for number in range(40)]
    batch = run(
        "manager", prompts=prompts, my_generate_fn=my_generate_fn, my_reward_fn=lambda sample: len(sample.prompt)
    ).batch
    assert len(batch.tokens) == len(batch.loss_masks) == 32
    assert batch.rewards == [float(len(prompt)) for prompt in batch.metadata["prompts"]]
    made = run(
        "generator", buffer=datasets.DataBuffer(prompts=prompts), RolloutConfig=RolloutConfig,
        my_generate_fn=lambda asked: [answered(prompt, 7) for prompt in asked],
    )  # fmt: skip
    assert len(made.batch.tokens) == 32


def test_a_backend_of_ones_own_needs_no_base_class():
    left = run("protocol", Protocol=Protocol, Dict=dict, Path=Path, TrainFuture=dict)
    assert {"forward_backward", "optim_step", "save_checkpoint"} <= vars(left.TrainingBackend).keys()
    assert {"forward_backward", "optim_step", "save_checkpoint"} <= vars(pytorch.PyTorchTrainingBackend).keys()
    engine = run("own engine").MyEngine()
    (answer,) = asyncio.run(weight_sync.sync_weights_to_engines([engine], str(Path.cwd())))
    assert answer["success"]


def test_a_backend_is_made_of_a_model_or_of_a_models_name(model_path, here):
    left = run("backend", Path=Path, torch=torch, device="cpu", my_loss_fn=cross_entropy, **trained())
    assert isinstance(left.backend, pytorch.PyTorchTrainingBackend)
    made = run("factory", model_path=model_path, Path=Path, device="cpu")
    assert made.backend.learner.optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


def test_a_backend_over_processes_is_made_in_a_process_group(monkeypatch):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    try:
        left = run("fsdp", process_group="gloo", model=a_model(), torch=torch, my_loss_fn=cross_entropy, Path=Path)
        forward = left.backend.forward_backward({"tokens": [[3, 7]], "loss_mask": [[0, 1]]})
        assert asyncio.run(forward.result())["loss"] == pytest.approx(2.77, abs=0.01)
        left.backend.close()
    finally:
        torch.distributed.destroy_process_group()


def test_rl_begins_with_the_newest_checkpoint_of_sft_by_its_number(here):
    def a_backend():
        return pytorch.PyTorchTrainingBackend(loss_fn=cross_entropy, checkpoint_dir=here / "checkpoints", **trained())

    async def run_sft(config, output_dir):
        await sft_loop.run_sft_training(a_backend(), [answered("1+6=", 7)], config)

    async def run_rl(config, output_dir, checkpoint):
        assert checkpoint.name == "step_10"
        assert (await a_backend().load_checkpoint(checkpoint))["step"] == 10

    run(
        "sft then rl", mode="sft+rl", output_dir=here, run_sft=run_sft, run_rl=run_rl,
        config=SFTTrainingConfig(num_steps=10, batch_size=1, checkpoint_every=1),
        latest_checkpoint=checkpoints.latest_checkpoint,
    )  # fmt: skip


def test_losses_over_logits_are_a_number_with_a_gradient():
    logits = torch.zeros(2, 3, 16, requires_grad=True)
    batch = {
        "labels": torch.tensor([[1, 2, 3], [4, 5, 6]]),
        "loss_mask": torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
        "advantages": torch.tensor([1.0, -0.5]),
        "old_log_probs": torch.full((2, 3), -2.7),
    }
    for program in ("grpo_loss", "ppo_loss"):
        logits.grad = None
        run(program, model_output=SimpleNamespace(logits=logits), batch=batch).loss.backward()
        assert (logits.grad.abs().sum(dim=-1) > 0).tolist() == [[False, True, True], [True, True, False]]


def test_a_checkpoint_is_loaded_into_engines_of_both_kinds_and_a_forward_pass_goes_on_beside_other_work():
    backend = pytorch.PyTorchTrainingBackend(loss_fn=cross_entropy, **trained())
    batch = {"tokens": [[3, 7, 7]], "loss_mask": [[0, 1, 1]]}
    futures = run("futures", backend=backend, batch=batch)
    assert {"loss", "grad_norm"} <= futures.fwd_metrics.keys()
    assert {"lr", "step"} <= futures.opt_metrics.keys()
    with fake_openai(kind="sglang") as sglang, fake_openai(kind="vllm") as vllm:
        left = run("weights", backend=backend, step=3, metrics={}, sglang_url=sglang.url, vllm_url=vllm.url)
    assert [answer["success"] for answer in left.responses] == [True, True]
    assert sglang.loaded == vllm.loaded == [str(left.ckpt_path.absolute())]


def test_a_buffer_hands_out_prompts_over_epochs():
    left = run("buffer", prompts=["3"])
    assert len(left.batch) == 32
    assert set(left.batch) == {"What is 2+2?", "Calculate 5*7", "3"}


def test_a_model_of_a_name_is_trained_on_one_device(model_path, here):
    samples = [answered(f"prompt {number}", 7) for number in range(4)]
    left = run("single gpu", num_steps=NUM_STEPS, model_path=model_path, sft_samples=samples, Path=Path)
    assert len(left.metrics) == NUM_STEPS
    assert left.metrics[-1]["loss"] < left.metrics[0]["loss"]
    assert {path.name for path in Path("ckpts").iterdir()} == {f"step_{NUM_STEPS}"}


def test_a_logger_writes_lines():
    run("logger", Path=Path)
    assert '"loss": 0.5' in Path("logs/experiment_001/metrics.jsonl").read_text()


def test_an_agents_answers_train_while_a_server_gets_the_weights():
    class Agent:
        async def rollout(self, prompt):
            return SimpleNamespace(text="37" if prompt == "1+6=" else "38", correct=prompt == "1+6=")

    config = RLTrainingConfig(num_steps=2, sync_every=1)
    with fake_openai(kind="sglang") as server:
        run(
            "sglang", agent=Agent(), Sample=Sample, RolloutConfig=RolloutConfig, rl_config=config,
            tokenizer=SimpleNamespace(encode=lambda text: [int(digit) for digit in text]),
            prompt_tokens=[3], response_tokens=[7], buffer=datasets.DataBuffer(prompts=["1+6=", "2+6="]),
            AsyncRolloutManager=rollout_gen.AsyncRolloutManager, SGLangEngine=weight_sync.SGLangEngine,
            check_quality_and_diversity=filters.check_quality_and_diversity, sglang_url=server.url,
            run_rl_training=rl_loop.run_rl_training,
            backend=pytorch.PyTorchTrainingBackend(loss_fn=rl_losses.grpo_loss, **trained()),
        )  # fmt: skip
        assert len(server.loaded) == 2


def test_advantages_and_filters_by_hand():
    left = run("advantages", rewards=[1.0, 0.0], rl_batch={}, torch=torch)
    assert left.rl_batch["advantages"].tolist() == [0.5, -0.5]
    left = run("filters", Sample=Sample, RolloutConfig=RolloutConfig, my_fn=my_generate_fn)
    assert left.config.filters[0]([answered("a", 7), answered("a", 8)])
    assert not left.config.filters[0]([answered("a", 8), answered("a", 8)])


def test_the_readmes_loop_runs(model_path, here):
    readme = (Path(training.__file__).parent / "README.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names = {"model_path": model_path}
    exec(program, names)
    assert len(names["metrics"]) == 2
    assert len(Path("logs/metrics.jsonl").read_text().splitlines()) == 1
