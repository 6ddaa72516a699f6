"""Makes prompts and scored samples for benches without an engine: their shapes are right, their tokens random."""

from collections.abc import Iterator

import numpy as np

from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from rollstream.schemas.scored import RolloutScored
from tests.harness.builders import a_generator, a_prompt, a_rollout, a_turn

_PROMPT_TOKENS = 16
_LOGPROB = -3.5


def synthetic_prompts(run: str, num_groups: int, *, group_size: int, max_tokens: int) -> Iterator[PromptSubmitted]:
    """Training prompts, each its own group."""
    for row in range(num_groups):
        yield a_prompt(
            row,
            run=run,
            environment="bench",
            messages=(Message(role="user", content="0123456789abcde="),),
            sampling=Sampling(max_tokens=max_tokens),
            group_size=group_size,
        )


def synthetic_samples(
    prompt: PromptSubmitted, *, num_tokens: int, vocab_size: int, random: np.random.Generator, tokenizer: str = ""
) -> Iterator[RolloutScored]:
    """The samples of one prompt, each of `num_tokens` random tokens. Their rewards differ, so the group can train.

    `tokenizer`: hash of the trainer's, which refuses others.
    """
    for index in range(prompt.group_size):
        turn = a_turn(
            random.integers(3, vocab_size, num_tokens, dtype=np.int32).tolist(),
            spans=[(0, 0, num_tokens)],
            prompt_token_ids=random.integers(3, vocab_size, _PROMPT_TOKENS, dtype=np.int32),
            behavior_logprobs=np.full(num_tokens, _LOGPROB, dtype=np.float32),
            text="",
        )
        generator = a_generator(tokenizer_sha256=tokenizer, chat_template_sha256="")
        yield a_rollout(float(index % 2), index, prompt=prompt, turns=(turn,), generator=generator)
