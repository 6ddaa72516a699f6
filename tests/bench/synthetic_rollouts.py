"""Makes prompts and scored samples for benches without an engine: their shapes are right, their tokens random."""

from collections.abc import Iterator

import numpy as np

from rollstream.schemas.ids import group_id, new_attempt_id, rollout_id
from rollstream.schemas.prompt import Message, PromptSubmitted, Purpose, Sampling
from rollstream.schemas.record import utc_now
from rollstream.schemas.rollout import FinishReason, GeneratorIdentity, RolloutGenerated, Status, Turn, WeightSpan
from rollstream.schemas.scored import RolloutScored, Scoring

_PROMPT_TOKENS = 16
_LOGPROB = -3.5


def synthetic_prompts(run: str, num_groups: int, *, group_size: int, max_tokens: int) -> Iterator[PromptSubmitted]:
    """Training prompts, each its own group."""
    for row in range(num_groups):
        prompt_id = f"bench/{row}"
        yield PromptSubmitted(
            prompt_id=prompt_id,
            group_id=group_id(run, prompt_id, 0),
            purpose=Purpose.TRAIN,
            environment="bench",
            messages=(Message(role="user", content="0123456789abcde="),),
            sampling=Sampling(max_tokens=max_tokens),
            group_size=group_size,
            submitted_at=utc_now(),
        )


def synthetic_samples(
    prompt: PromptSubmitted, *, num_tokens: int, vocab_size: int, random: np.random.Generator, tokenizer: str = ""
) -> Iterator[RolloutScored]:
    """The samples of one prompt, each of `num_tokens` random tokens. Their rewards differ, so the group can train.

    `tokenizer`: hash of the trainer's, which refuses others.
    """
    for index in range(prompt.group_size):
        turn = Turn(
            prompt_token_ids=random.integers(3, vocab_size, _PROMPT_TOKENS, dtype=np.int32),
            token_ids=random.integers(3, vocab_size, num_tokens, dtype=np.int32),
            behavior_logprobs=np.full(num_tokens, _LOGPROB, dtype=np.float32),
            weight_spans=(WeightSpan(weight_version=0, start=0, end=num_tokens),),
            finish_reason=FinishReason.STOP,
        )
        now = utc_now()
        rollout = RolloutGenerated(
            rollout_id=rollout_id(prompt.group_id, index),
            attempt_id=new_attempt_id(),
            group_id=prompt.group_id,
            sample_index=index,
            group_size=prompt.group_size,
            prompt=prompt,
            turns=(turn,),
            status=Status.COMPLETED,
            generator=GeneratorIdentity(
                generator_id="bench", engine="none", engine_version="0", tokenizer_sha256=tokenizer
            ),
            started_at=now,
            finished_at=now,
        )
        scoring = Scoring(
            scorer="bench", scorer_version="0", reward=float(index % 2), status=Status.COMPLETED, scored_at=now
        )
        yield RolloutScored(rollout=rollout, scoring=scoring)
