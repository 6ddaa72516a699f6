"""What is recorded of a client's call: a rollout for each choice, all of one group. Pure."""

from typing import Final
from uuid import uuid4

import numpy as np

from rollstream.generator.serve.call import ServedCall, ServedChoice
from rollstream.schemas.ids import group_id, new_attempt_id, rollout_id
from rollstream.schemas.prompt import PromptSubmitted, Purpose
from rollstream.schemas.rollout import GeneratorIdentity, RolloutGenerated, Served, Status, Turn

_NO_TOKENS: Final = np.zeros(0, dtype=np.int32)
_NO_LOGPROBS: Final = np.zeros(0, dtype=np.float32)


def rollouts_of(call: ServedCall, *, run: str, identity: GeneratorIdentity) -> tuple[RolloutGenerated, ...]:
    """One rollout of one turn for each choice. The ids are new: each call is its own prompt."""
    prompt = _prompt(call, run)
    return tuple(
        RolloutGenerated(
            rollout_id=rollout_id(prompt.group_id, index),
            attempt_id=new_attempt_id(),
            group_id=prompt.group_id,
            sample_index=index,
            group_size=prompt.group_size,
            prompt=prompt,
            turns=(_turn(call, choice),),
            status=Status.COMPLETED,
            generator=identity,
            served=_served(call, choice.number),
            started_at=call.started_at,
            finished_at=call.finished_at,
        )
        for index, choice in enumerate(call.choices)
    )


def text_alone(rollout: RolloutGenerated) -> RolloutGenerated:
    """The same as a server that speaks only text would record it: nothing of it can train."""
    turns = tuple(
        turn.model_copy(
            update={
                "prompt_token_ids": _NO_TOKENS,
                "token_ids": _NO_TOKENS,
                "behavior_logprobs": _NO_LOGPROBS,
                "weight_spans": (),
                "reported_prompt_tokens": len(turn.prompt_token_ids),
                "reported_completion_tokens": len(turn.token_ids),
            }
        )
        for turn in rollout.turns
    )
    assert rollout.served is not None
    return rollout.model_copy(update={"turns": turns, "served": rollout.served.model_copy(update={"may_train": False})})


def without_messages(rollout: RolloutGenerated) -> RolloutGenerated:
    """The same without what was asked, which alone is larger than a record may be."""
    prompt = rollout.prompt.model_copy(update={"messages": (), "tools": ()})
    return rollout.model_copy(update={"prompt": prompt})


def can_train(rollout: RolloutGenerated) -> bool:
    """Whether feedback may make a training sample of it: with consent, plain, and with its tokens."""
    is_whole = bool(rollout.turns) and all(turn.is_plain and len(turn.token_ids) for turn in rollout.turns)
    return is_whole and rollout.served is not None and rollout.served.may_train


def _prompt(call: ServedCall, run: str) -> PromptSubmitted:
    prompt_id = f"serve/{uuid4().hex}"
    return PromptSubmitted(
        prompt_id=prompt_id,
        group_id=group_id(run, prompt_id, 0),
        purpose=Purpose.SERVE,
        environment=call.caller.key.environment,
        messages=call.caller.messages,
        tools=call.caller.tools,
        sampling=call.sampling,
        group_size=len(call.choices),
        subject=call.caller.subject,
        submitted_at=call.started_at,
    )


def _turn(call: ServedCall, choice: ServedChoice) -> Turn:
    return Turn(
        prompt_token_ids=call.prompt_token_ids,
        token_ids=choice.token_ids,
        behavior_logprobs=choice.behavior_logprobs,
        weight_spans=choice.weight_spans,
        finish_reason=choice.finish_reason,
        text=choice.text,
        latency_seconds=max(0.0, (call.finished_at - call.started_at).total_seconds()),
        is_plain=call.is_plain,
        sampling=call.other_sampling,
    )


def _served(call: ServedCall, choice: int) -> Served:
    caller = call.caller
    return Served(
        response_id=call.response_id,
        choice=choice,
        session=caller.session or call.response_id,
        route=caller.route,
        key=caller.name,
        tenant=caller.key.tenant,
        may_train=caller.key.may_train,
    )
