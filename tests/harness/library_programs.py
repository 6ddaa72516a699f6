"""Short programs as people write them with the training library, by what they are about."""

PROGRAMS = {
    "sft": """
from rollstream.training import run_sft_training, SFTTrainingConfig, PyTorchTrainingBackend

backend = PyTorchTrainingBackend(model, optimizer, loss_fn, **places)
config = SFTTrainingConfig(num_steps=num_steps, batch_size=4, **how_often)
metrics = await run_sft_training(backend, samples, config, metrics_logger)
""",
    "rl": """
from rollstream.training import (
    run_rl_training, RLTrainingConfig, AsyncRolloutManager,
    RolloutConfig, DataBuffer, PyTorchTrainingBackend
)
from rollstream.training.weight_sync import SGLangEngine, sync_weights_to_engines

buffer = DataBuffer(prompts=[*prompts])
rollout_config = RolloutConfig(batch_size=32, generate_fn=my_generate_fn)
rollout_manager = AsyncRolloutManager(buffer, rollout_config)
engines = [SGLangEngine(sglang_url)]
backend = PyTorchTrainingBackend(model, optimizer, grpo_loss, **places)
config = RLTrainingConfig(num_steps=num_steps, sync_every=10)

metrics = await run_rl_training(backend, buffer, rollout_manager, engines, config)
""",
    "sample": """
from rollstream.training.types import Sample

sample = Sample(
    prompt="What is 2+2?",
    response="4",
    tokens=[*four_tokens],
    loss_mask=[0.0, 0.0, 1.0, 1.0],
    reward=1.0,
    metadata={"correct": True},
)
""",
    "batch": """
from rollstream.training.types import RolloutBatch

batch = RolloutBatch(
    tokens=[[*row], [*other_row]],
    loss_masks=[[*mask], [*other_mask]],
    rewards=[1.0, 0.0],
    response_lengths=[5, 3],
    metadata={**facts},
)
""",
    "configs": """
from rollstream.training.types import SFTTrainingConfig
config = SFTTrainingConfig(
    num_steps=1000,
    batch_size=4,
    log_every=100,
    checkpoint_every=500,
)

from rollstream.training.types import RLTrainingConfig
config = RLTrainingConfig(
    num_steps=1000,
    sync_every=10,
    baseline=0.0,
    log_every=10,
    checkpoint_every=100,
)

from rollstream.training.types import RolloutConfig
config = RolloutConfig(
    batch_size=32,
    n_samples_per_prompt=1,
    over_sampling_factor=1.5,
    generate_fn=my_fn,
    reward_fn=None,
    filter_fn=None,
)
""",
    "manager": """
from rollstream.training import AsyncRolloutManager, DataBuffer, RolloutConfig

buffer = DataBuffer(prompts=[*prompts])
config = RolloutConfig(batch_size=32, generate_fn=my_generate_fn)
manager = AsyncRolloutManager(buffer, config)

async with manager:
    batch = await manager.generate_batch(reward_fn=my_reward_fn)
""",
    "generator": """
from rollstream.training.rollout_gen import generate_rollout_batches

config = RolloutConfig(batch_size=32, generate_fn=my_generate_fn)
batches = generate_rollout_batches(buffer, config)

for batch in batches:
    break
""",
    "protocol": '''
class TrainingBackend(Protocol):
    async def forward_backward(self, batch: Dict) -> TrainFuture[Dict[str, float]]:
        """Returns {"loss": float, "grad_norm": float, ...}"""
        ...

    async def optim_step(self) -> TrainFuture[Dict[str, float]]:
        """Returns {"lr": float, "step": int, ...}"""
        ...

    async def save_checkpoint(self, step: int, metrics: Dict) -> Path:
        """Save checkpoint, return path"""
        ...
''',
    "backend": """
from rollstream.training import PyTorchTrainingBackend

backend = PyTorchTrainingBackend(
    model=model,
    optimizer=optimizer,
    loss_fn=my_loss_fn,
    checkpoint_dir=Path("checkpoints"),
    device=torch.device(device),
)
""",
    "factory": """
from rollstream.training.backends import create_pytorch_backend

backend = create_pytorch_backend(
    model_name=model_path,
    checkpoint_dir=Path("checkpoints"),
    device_type=device,
    learning_rate=1e-4,
)
""",
    "fsdp": """
import torch.distributed as dist
from rollstream.training.backends.fsdp import FSDPTrainingBackend, FSDPConfig

dist.init_process_group(backend=process_group)

backend = FSDPTrainingBackend(
    model=model,
    optimizer_fn=lambda m: torch.optim.AdamW(m.parameters()),
    loss_fn=my_loss_fn,
    checkpoint_dir=Path("checkpoints"),
    config=FSDPConfig(
        sharding_strategy="FULL_SHARD",
        mixed_precision=True,
        gradient_checkpointing=False,
    ),
)
""",
    "grpo_loss": """
from rollstream.training.rl_losses import grpo_loss

loss = grpo_loss(
    logits=model_output.logits,
    labels=batch["labels"],
    loss_mask=batch["loss_mask"],
    advantages=batch["advantages"],
)
""",
    "ppo_loss": """
from rollstream.training.rl_losses import ppo_loss

loss = ppo_loss(
    logits=model_output.logits,
    labels=batch["labels"],
    loss_mask=batch["loss_mask"],
    advantages=batch["advantages"],
    old_log_probs=batch["old_log_probs"],
    clip_range=0.2,
)
""",
    "weights": """
from rollstream.training.weight_sync import (
    SGLangEngine, VLLMEngine,
    sync_weights_to_engines
)

engines = [
    SGLangEngine(sglang_url),
    VLLMEngine(vllm_url),
]

ckpt_path = await backend.save_checkpoint(step, metrics)

responses = await sync_weights_to_engines(engines, str(ckpt_path))
""",
    "own engine": """
class MyEngine:
    async def update_weights_from_checkpoint(self, checkpoint_path: str) -> dict:
        return {"success": True}
""",
    "buffer": """
from rollstream.training.datasets import DataBuffer

buffer = DataBuffer(
    prompts=["What is 2+2?", "Calculate 5*7", *prompts],
    seed=42,
)

batch = buffer.get_prompts(32)

state = buffer.save_state()
buffer.load_state(state)
""",
    "sft then rl": """
if mode == "sft+rl":
    await run_sft(config, output_dir)

    latest_ckpt = latest_checkpoint(output_dir / "checkpoints")

    await run_rl(config, output_dir, latest_ckpt)
""",
    "logger": """
from rollstream.training.metrics import JSONLLogger

logger = JSONLLogger(Path("logs/experiment_001"))

logger.log({"loss": 0.5, "reward": 1.0, "step": 42}, step=42)

logger.finish()
""",
    "single gpu": """
from rollstream.training.backends import create_pytorch_backend
from rollstream.training import run_sft_training, SFTTrainingConfig

backend = create_pytorch_backend(
    model_name=model_path,
    checkpoint_dir=Path("ckpts"),
    learning_rate=1e-4,
)

metrics = await run_sft_training(
    backend=backend,
    samples=sft_samples,
    config=SFTTrainingConfig(num_steps=num_steps, batch_size=4),
)
""",
    "sglang": '''
async def generate_fn(prompts):
    """User-provided: prompts -> samples"""
    samples = []
    for prompt in prompts:
        response = await agent.rollout(prompt)
        sample = Sample(
            prompt=prompt,
            response=response.text,
            tokens=tokenizer.encode(response.text),
            loss_mask=[0]*len(prompt_tokens) + [1]*len(response_tokens),
            metadata={"correct": response.correct},
        )
        samples.append(sample)
    return samples

rollout_config = RolloutConfig(
    batch_size=32,
    generate_fn=generate_fn,
    filter_fn=check_quality_and_diversity,
)

manager = AsyncRolloutManager(buffer, rollout_config)
engines = [SGLangEngine(sglang_url)]

await run_rl_training(backend, buffer, manager, engines, rl_config)
''',
    "advantages": """
from rollstream.training.loops.rl_loop import compute_advantages

advantages = compute_advantages(rewards, baseline=0.5)

rl_batch["advantages"] = torch.tensor(advantages)
""",
    "filters": '''
from rollstream.training.filters import (
    check_reward_nonzero_std,
    check_min_reward,
    check_response_diversity,
    check_quality_and_diversity,
)

def my_filter(samples: list[Sample]) -> bool:
    """Return True if group passes quality checks"""
    return all([
        check_min_reward(samples, threshold=0.5),
        check_response_diversity(samples),
    ])

config = RolloutConfig(
    batch_size=32,
    generate_fn=my_fn,
    filter_fn=my_filter,
)
''',
    "futures": """
fwd_future = backend.forward_backward(batch)
fwd_metrics = await fwd_future.result()

opt_metrics = await backend.optim_step().result()
""",
}
