"""SFT and RL as loops over a backend: what they train on, write, log and sync, and how they go on after a stop."""

import asyncio
import contextlib
import json
import math
from collections import Counter
from itertools import chain

import pytest

from rollstream.schemas.errors import BrokenWorldError, ConfigurationError, EngineError
from rollstream.training.datasets import DataBuffer
from rollstream.training.metrics import JSONLLogger
from rollstream.training.rollout_gen import AsyncRolloutManager
from rollstream.training.types import RLTrainingConfig, RolloutConfig, Sample, SFTTrainingConfig
from tests.harness.late import Late

torch = Late("torch")
toys = Late("tests.harness.toy_models")
pytorch = Late("rollstream.training.backends.pytorch")
checkpoints = Late("rollstream.training.backends.checkpoints")
sft_loop = Late("rollstream.training.loops.sft_loop")
rl_loop = Late("rollstream.training.loops.rl_loop")
losses = Late("rollstream.training.rl_losses")


def a_backend(directory, loss_fn, rate=0.5):
    model = toys.ToyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return contextlib.closing(pytorch.PyTorchTrainingBackend(model, optimizer, loss_fn, directory))


def demonstrations(number=6):
    """The token after 1 + n is 2 + n."""
    return [Sample(f"prompt {n}", tokens=[1 + n, 2 + n], loss_mask=[0, 1]) for n in range(number)]


def sft(backend, samples, num_steps, logger=None, resume_from=None, **config):
    settings = SFTTrainingConfig(num_steps=num_steps, **{"batch_size": 4, "log_every": 2, **config})
    return asyncio.run(sft_loop.run_sft_training(backend, samples, settings, logger, resume_from=resume_from))


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_sft_lowers_the_loss_logs_and_writes_checkpoints_when_due_and_at_the_end(tmp_path):
    logger = JSONLLogger(tmp_path)
    with a_backend(tmp_path / "checkpoints", toys.token_mean) as backend:
        metrics = sft(backend, demonstrations(), 25, logger, checkpoint_every=10, log_every=10)
    logger.finish()
    assert len(metrics) == 25
    assert metrics[-1]["loss"] < 0.5 * metrics[0]["loss"]
    assert {"loss", "grad_norm", "lr", "step"} <= metrics[0].keys()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_10", "step_20", "step_25"]
    assert [line["step"] for line in lines(tmp_path)] == [10, 20, 25]
    assert lines(tmp_path)[0]["loss"] == metrics[9]["loss"]


def test_sft_shows_each_sample_once_an_epoch_in_an_order_of_its_own(tmp_path):
    seen = []

    def noting(logits, labels):
        seen.extend(labels[:, 0].tolist())
        return logits.sum() * 0

    with a_backend(tmp_path, noting) as backend:
        sft(backend, demonstrations(6), 6)
    epochs = [seen[start : start + 6] for start in range(0, 24, 6)]
    assert all(sorted(epoch) == [2, 3, 4, 5, 6, 7] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_sft_that_goes_on_from_a_checkpoint_trains_as_if_it_had_not_stopped(tmp_path):
    with a_backend(tmp_path / "whole", toys.token_mean) as backend:
        whole = sft(backend, demonstrations(), 9)
    with a_backend(tmp_path / "parts", toys.token_mean) as backend:
        sft(backend, demonstrations(), 4)
    with a_backend(tmp_path / "parts", toys.token_mean) as backend:
        rest = sft(backend, demonstrations(), 9, resume_from=tmp_path / "parts" / "step_4")
    assert rest == whole[4:]


def test_sft_of_nothing_is_refused(tmp_path):
    with a_backend(tmp_path, toys.token_mean) as backend:
        for samples in ([], [Sample("prompt", tokens=[1, 2], loss_mask=[0, 0])]):
            with pytest.raises(ConfigurationError, match="token to train"):
                sft(backend, samples, 1)


def test_updates_that_are_not_finite_three_times_in_a_row_end_the_loop(tmp_path):
    seen = []

    def infinite(logits):
        seen.append(1)
        return logits.sum() * (math.inf if len(seen) != 2 else 0.0)

    with a_backend(tmp_path, infinite) as backend, pytest.raises(BrokenWorldError, match="learning rate"):
        sft(backend, demonstrations(), 100)
    assert len(seen) == 5


class ToyEngine:
    """Knows which checkpoint it has loaded, as the library's engines do; it may be down."""

    def __init__(self, down_at=()):
        self.down_at = down_at
        self.loaded = []
        self.weight_version = None

    async def update_weights_from_checkpoint(self, checkpoint_path, *, weight_version=None):
        step = int(checkpoint_path.rpartition("_")[2])
        if step in self.down_at:
            raise ConnectionError("refused")
        self.loaded.append(step)
        self.weight_version = step
        return {"success": True}


class Rollouts:
    """Answers a prompt "n" by token 7 or 6 in turn, whatever the model; 7 is right. Notes what was trained."""

    def __init__(self, prompts=10, engines=(), **config):
        self.engines = engines
        self.calls = 0
        self.buffer = DataBuffer([str(n) for n in range(prompts)], seed=1)
        settings = RolloutConfig(
            generate_fn=self.generate, retry_delay=0.0, **{"batch_size": 3, "n_samples_per_prompt": 2, **config}
        )
        self.manager = AsyncRolloutManager(self.buffer, settings)

    async def generate(self, prompts):
        await asyncio.sleep(0)
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        self.calls += 1
        engine = self.engines[self.calls % len(self.engines)] if self.engines else None
        token = 6 + self.calls % 2
        version = engine.weight_version or 0 if engine else 0
        return Sample(
            prompt,
            tokens=[int(prompt) % 6, token],
            loss_mask=[0, 1],
            reward=float(token == 7),
            metadata={"weight_version": version},
        )


def rl(backend, rollouts, num_steps, *, engines=(), logger=None, resume_from=None, **config):
    settings = RLTrainingConfig(num_steps=num_steps, **{"log_every": 1, **config})
    run = rl_loop.run_rl_training(
        backend, rollouts.buffer, rollouts.manager, engines, settings, logger, resume_from=resume_from
    )
    return asyncio.run(asyncio.wait_for(run, 60))


def test_rl_makes_the_rewarded_token_likelier(tmp_path):
    with a_backend(tmp_path, losses.grpo_loss) as backend:
        model = backend.learner.model
        before = model(torch.arange(6)).softmax(-1)[:, 7].mean().item()
        metrics = rl(backend, Rollouts(), 20)
        after = model(torch.arange(6)).softmax(-1)[:, 7].mean().item()
    assert after > before + 0.2
    assert {"loss", "grad_norm", "lr", "reward_mean", "reward_std", "response_length_mean"} <= metrics[0].keys()
    assert metrics[0]["reward_mean"] == 0.5


def test_engines_get_a_checkpoint_every_sync_and_those_that_are_not_kept_are_deleted_after_the_next(tmp_path):
    engines = [ToyEngine(), ToyEngine()]
    logger = JSONLLogger(tmp_path)
    with a_backend(tmp_path / "checkpoints", losses.grpo_loss) as backend:
        rl(backend, Rollouts(engines=engines), 7, engines=engines, logger=logger, sync_every=2, checkpoint_every=4)
    logger.finish()
    assert [engine.loaded for engine in engines] == [[2, 4, 6], [2, 4, 6]]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_4", "step_7"]
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


def test_an_engine_that_is_down_is_reported_the_others_are_synced_and_its_rollouts_show_the_old_version(
    tmp_path, caplog
):
    engines = [ToyEngine(), ToyEngine(down_at=(4,))]
    with a_backend(tmp_path, losses.grpo_loss) as backend:
        metrics = rl(backend, Rollouts(engines=engines), 7, engines=engines, sync_every=2)
    assert [engine.loaded for engine in engines] == [[2, 4, 6], [2, 6]]
    assert [step.get("engines_behind") for step in metrics] == [None, None, 0, 0, 1, 1, 0]
    assert "engine 1 did not load the weights of step 4" in caplog.text
    assert "refused" in caplog.text
    # Step 5 trains what engine 0 sampled with the weights of step 4, and engine 1 with those of step 2.
    assert (metrics[4]["policy_lag_mean"], metrics[4]["policy_lag_max"]) == (1.0, 2.0)
    assert metrics[6]["policy_lag_max"] == 0.0


def test_where_no_engine_loads_new_weights_the_loop_ends_with_the_step_logged_and_written(tmp_path):
    engines, logger = [ToyEngine(down_at=(2,))], JSONLLogger(tmp_path)
    with a_backend(tmp_path, losses.grpo_loss) as backend, pytest.raises(EngineError, match=r"step_2.*refused"):
        rl(backend, Rollouts(engines=engines), 7, engines=engines, logger=logger, sync_every=2)
    logger.finish()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    assert checkpoints.latest_checkpoint(tmp_path).name == "step_2"


class Noting:
    """GRPO's loss, which notes the first tokens of each batch, and ends the loop at one of them."""

    def __init__(self, ends_at=None, cancels_at=None):
        self.batches = []
        self.ends_at = ends_at
        self.cancels_at = cancels_at
        self.cancel = None

    def __call__(self, logits, tokens, labels, loss_mask, advantages):
        if len(self.batches) + 1 == self.ends_at:
            raise MemoryError("killed")
        self.batches.append(tokens[:, 0].tolist())
        if len(self.batches) == self.cancels_at:
            self.cancel()
        return losses.grpo_loss(logits, labels, loss_mask, advantages)


def test_rl_that_is_stopped_and_goes_on_loses_no_prompt_and_doubles_none(tmp_path):
    config = {"over_sampling_factor": 2.0, "prompts": 6, "batch_size": 2}
    whole, before, after = Noting(), Noting(ends_at=7), Noting()
    with a_backend(tmp_path / "whole", whole) as backend:
        rl(backend, Rollouts(**config), 9)
    with a_backend(tmp_path / "parts", before) as backend, pytest.raises(MemoryError):
        rl(backend, Rollouts(**config), 9, checkpoint_every=5)
    engine = ToyEngine()
    with a_backend(tmp_path / "parts", after) as backend:
        newest = checkpoints.latest_checkpoint(tmp_path / "parts")
        metrics = rl(backend, Rollouts(**config), 9, engines=[engine], resume_from=newest)
        assert backend.learner.num_updates == 9
    assert len(metrics) == 4
    assert engine.loaded == [5]  # it may have had other weights
    # Nine batches of 2 prompts are three epochs of 6 prompts, each with 2 samples a group.
    for batches in (whole.batches, before.batches[:5] + after.batches):
        assert Counter(chain.from_iterable(batches)) == dict.fromkeys(range(6), 6)


def cancelled(run, noting):
    """Cancel `run` from the backend's thread, as Ctrl-C does from outside, where `noting` says."""

    async def begun():
        task = asyncio.ensure_future(run)
        loop = asyncio.get_running_loop()
        noting.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)

    asyncio.run(begun())


def test_rl_that_is_cancelled_in_a_step_writes_it_and_goes_on_without_losing_a_prompt(tmp_path):
    config = {"over_sampling_factor": 2.0, "prompts": 6, "batch_size": 2}
    before, after = Noting(cancels_at=7), Noting()
    with a_backend(tmp_path, before) as backend:
        rollouts = Rollouts(**config)
        logger = JSONLLogger(tmp_path)
        settings = RLTrainingConfig(num_steps=9, log_every=1)
        cancelled(rl_loop.run_rl_training(backend, rollouts.buffer, rollouts.manager, [], settings, logger), before)
    logger.finish()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]
    newest = checkpoints.latest_checkpoint(tmp_path)
    assert newest.name == "step_7"
    with a_backend(tmp_path, after) as backend:
        assert len(rl(backend, Rollouts(**config), 9, resume_from=newest)) == 2
        assert backend.learner.num_updates == 9
    assert Counter(chain.from_iterable(before.batches + after.batches)) == dict.fromkeys(range(6), 6)


def test_rl_that_is_cancelled_while_it_waits_for_rollouts_writes_the_step_before(tmp_path):
    class Waiting(Rollouts):
        async def generate(self, prompts):
            if self.calls >= 12:
                noting.cancel()
                await asyncio.Event().wait()
            return await super().generate(prompts)

    noting = Noting()
    with a_backend(tmp_path, noting) as backend:
        rollouts, settings = Waiting(), RLTrainingConfig(num_steps=9)
        cancelled(rl_loop.run_rl_training(backend, rollouts.buffer, rollouts.manager, [], settings), noting)
    assert checkpoints.latest_checkpoint(tmp_path).name == "step_2"


def test_sft_that_is_cancelled_writes_the_step_that_it_was_in_and_goes_on_as_if_it_had_not_stopped(tmp_path):
    def mean(logits, tokens, labels, loss_mask):
        noting(logits, tokens, labels, loss_mask, torch.ones(len(tokens)))
        return toys.token_mean(logits, labels, loss_mask)

    with a_backend(tmp_path / "whole", toys.token_mean) as backend:
        whole = sft(backend, demonstrations(), 9)
    noting = Noting(cancels_at=4)
    with a_backend(tmp_path / "parts", mean) as backend:
        settings = SFTTrainingConfig(num_steps=9, batch_size=4)
        cancelled(sft_loop.run_sft_training(backend, demonstrations(), settings), noting)
    with a_backend(tmp_path / "parts", toys.token_mean) as backend:
        rest = sft(backend, demonstrations(), 9, resume_from=checkpoints.latest_checkpoint(tmp_path / "parts"))
    assert rest == whole[4:]


def test_a_checkpoint_of_another_loop_or_another_buffer_is_refused(tmp_path):
    with a_backend(tmp_path, toys.token_mean) as backend:
        sft(backend, demonstrations(), 1)
        rollouts = Rollouts()
        with pytest.raises(ConfigurationError, match="rollout manager"):
            rl(backend, rollouts, 2, resume_from=tmp_path / "step_1")
        rollouts.buffer = DataBuffer(["1"])
        with pytest.raises(ConfigurationError, match="buffer"):
            rl(backend, rollouts, 2)
        asyncio.run(backend.save_checkpoint(2, {}))
        with pytest.raises(ConfigurationError, match="samples were seen"):
            sft(backend, demonstrations(), 3, resume_from=tmp_path / "step_2")


def test_rl_begins_from_the_newest_checkpoint_of_sft(tmp_path):
    with a_backend(tmp_path, toys.token_mean) as backend:
        sft(backend, demonstrations(), 12, checkpoint_every=9)
        trained = backend.learner.model.head.weight.clone()
    with a_backend(tmp_path / "rl", losses.grpo_loss) as backend:
        newest = checkpoints.latest_checkpoint(tmp_path)
        assert newest.name == "step_12"
        asyncio.run(backend.load_checkpoint(newest))
        assert torch.equal(backend.learner.model.head.weight, trained)
        assert rl(backend, Rollouts(), 2)[0]["step"] == 13


class OwnBackend:
    """A backend of one's own: the protocol alone, and all checkpoints in one directory that it keeps."""

    def __init__(self, backend, directory):
        self.forward_backward, self.optim_step = backend.forward_backward, backend.optim_step
        self.directory = directory
        self.written = []

    async def save_checkpoint(self, step, metrics):
        self.directory.mkdir(exist_ok=True)
        self.written.append(step)
        return self.directory


class NoWeights:
    """An engine that takes any checkpoint."""

    async def update_weights_from_checkpoint(self, checkpoint_path):
        return {"success": True}


def test_a_backend_of_ones_own_keeps_its_checkpoints_as_it_likes_and_writes_none_for_no_engine(tmp_path):
    with a_backend(tmp_path, losses.grpo_loss) as inner:
        own = OwnBackend(inner, tmp_path / "mine")
        rl(own, Rollouts(), 5, sync_every=1, checkpoint_every=4)
        assert own.written == [4, 5]
        rl(own, Rollouts(), 5, engines=[NoWeights()], sync_every=2, checkpoint_every=5)
    assert own.written == [4, 5, 2, 4, 5]
    assert own.directory.is_dir()
