"""GRPO on one page: a model learns to sort digits from rewards alone, on a CPU, within minutes.

    python trainer/examples/grpo.py

Sample a group of answers to each prompt; reward them; an answer's advantage is its reward minus its group's mean; raise
the probability of the tokens of answers that are better than their group, and lower that of the others (Shao et al.
2024, arXiv:2402.03300; without the division by the group's deviation, as in Liu et al. 2025, arXiv:2503.20783; clipped
as in DAPO, Yu et al. 2025, arXiv:2503.14476). Only the tasks come from the project.

Shapes: `B` answers, `L` tokens of the longest sequence, prompt and answer together, `V` vocabulary.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollstream.environments.protocol import Task
from rollstream.environments.sort_digits import SortDigits

VOCABULARY = ["<pad>", "<end>", *"0123456789="]
PAD, END = 0, 1
MAX_NEW_TOKENS = 9  # eight digits and the end


def encode(text: str) -> list[int]:
    return [VOCABULARY.index(character) for character in text]


def new_model(hidden: int = 64, layers: int = 2) -> Any:
    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden // 4,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


@torch.no_grad()
def sample(model: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    """One answer for each prompt, drawn from softmax(logits), up to and with the end token."""
    longest = max(map(len, prompts))
    # Padded on the left, so that all answers begin at the same place.
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    sampled = model.generate(
        ids, attention_mask=ids != PAD, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS
    )
    answers = sampled[:, longest:].tolist()
    return [answer[: answer.index(END) + 1] if END in answer else answer for answer in answers]


def pad(prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Tokens [B, L], padded on the right, and mask [B, L]: 1 on the answers' tokens, 0 on prompts and padding."""
    length = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    tokens, mask = torch.full((len(prompts), length), PAD), torch.zeros(len(prompts), length)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        mask[row, len(prompt) : end] = 1
    return tokens, mask


def logprobs_of(model: Any, tokens: Tensor) -> Tensor:
    """Log probability [B, L - 1] of each token but the first, given the tokens before it."""
    logits = model(input_ids=tokens, attention_mask=tokens != PAD).logits[:, :-1]
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def grpo_loss(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, advantages: Tensor, clip: tuple[float, float] = (0.2, 0.28)
) -> Tensor:
    """-min(ratio x advantage, clip(ratio) x advantage), the mean over all tokens of the answers.

    `logprobs` and `old_logprobs` (of the weights that sampled) are [B, L - 1], `mask` [B, L], `advantages` [B]. In the
    first update after sampling the ratio is 1, and the gradient that of -logprob x advantage. With all advantages 1
    this is supervised fine-tuning.
    """
    mask, ratio = mask[:, 1:], (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    per_token = -torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
    return (per_token * mask).sum() / mask.sum()


def update(model: Any, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def warm_up(model: Any, tasks: Iterator[Task], steps: int, batch: int = 64) -> None:
    """Imitate right answers, until some samples are right: a group whose rewards are all 0 teaches nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(steps):
        shown = list(islice(tasks, batch))
        answers = [[*encode(task.demonstration or ""), END] for task in shown]
        tokens, mask = pad([encode(task.messages[0].content) for task in shown], answers)
        logprobs = logprobs_of(model, tokens)
        update(model, optimizer, grpo_loss(logprobs, logprobs.detach(), mask, torch.ones(batch)))


def grpo_step(model: Any, optimizer: torch.optim.Optimizer, tasks: Sequence[Task], group_size: int) -> float:
    """One step on `group_size` answers to each task; their mean reward."""
    asked = [task for task in tasks for _ in range(group_size)]
    prompts = [encode(task.messages[0].content) for task in asked]
    answers = sample(model, prompts)
    right = [[*encode(task.reference_answer or ""), END] for task in asked]
    rewards = torch.tensor([float(answer == wanted) for answer, wanted in zip(answers, right, strict=True)])
    groups = rewards.view(len(tasks), group_size)
    advantages = (groups - groups.mean(dim=1, keepdim=True)).flatten()
    tokens, mask = pad(prompts, answers)
    logprobs = logprobs_of(model, tokens)
    update(model, optimizer, grpo_loss(logprobs, logprobs.detach(), mask, advantages))
    return rewards.mean().item()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--warm-up-steps", type=int, default=100)
    options.add_argument("--prompts", type=int, default=32, help="a step")
    options.add_argument("--group-size", type=int, default=8, help="answers to each prompt")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()

    torch.manual_seed(chosen.seed)
    model, tasks = new_model(), SortDigits().tasks("train", chosen.seed)
    warm_up(model, tasks, chosen.warm_up_steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    rewards = list[float]()
    for step in range(1, chosen.steps + 1):
        rewards.append(grpo_step(model, optimizer, list(islice(tasks, chosen.prompts)), chosen.group_size))
        if step % 10 == 0:
            print(f"step {step}: mean reward {sum(rewards[-10:]) / 10:.3f}", flush=True)


if __name__ == "__main__":
    main()
