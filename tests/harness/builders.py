"""Realistic records for tests: each builder takes the fields that matter to the test and fills in the rest."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from pydantic import SecretStr

from rollstream.generator.serve.call import Caller, ServedCall, ServedChoice
from rollstream.http.keys import ClientKey
from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.feedback import FeedbackGiven
from rollstream.schemas.ids import group_id, rollout_id
from rollstream.schemas.ledger import EntryKind, LedgerEntry, TrainedRollout
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.progress import ProgressKind, TurnProgress
from rollstream.schemas.prompt import Message, PromptSource, PromptSubmitted, Purpose, Sampling, ToolCall
from rollstream.schemas.rollout import (
    FinishReason,
    GeneratorIdentity,
    RolloutGenerated,
    Served,
    Status,
    ToolAnswer,
    Turn,
    WeightSpan,
)
from rollstream.schemas.scored import RolloutScored, Scoring
from rollstream.schemas.weights import ApplyOutcome, WeightFile, WeightsApplied, WeightsPublished

RUN = "demo"
NOON = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def a_prompt(row: int = 17, *, run: str = RUN, **fields: Any) -> PromptSubmitted:
    """A training prompt of `sort_digits`, 4 samples, temperature 1."""
    epoch = fields["source"].epoch if "source" in fields else 0
    prompt_id = fields.pop("prompt_id", f"sort_digits/{row}")
    values: dict[str, Any] = {
        "prompt_id": prompt_id,
        "group_id": group_id(run, prompt_id, epoch),
        "purpose": Purpose.TRAIN,
        "environment": "sort_digits",
        "messages": (Message(role="user", content="52910="),),
        "reference_answer": "01259",
        "sampling": Sampling(max_tokens=12, seed=row),
        "group_size": 4,
        "metadata": {"difficulty": "5"},
        "source": PromptSource(dataset="sort_digits", row=row),
        "producer": "producer-0",
        "sequence": row,
        "submitted_at": NOON,
    }
    return PromptSubmitted(**{**values, **fields})


def a_turn(
    token_ids: Sequence[int] = (4, 5, 6, 9, 13, 1),
    *,
    spans: Sequence[tuple[int, int, int]] | None = None,
    **fields: Any,
) -> Turn:
    """A turn over `token_ids`; `spans` are (weight_version, start, end), by default version 3 throughout."""
    covering = [(3, 0, len(token_ids))] if spans is None and len(token_ids) else spans or ()
    values: dict[str, Any] = {
        "prompt_token_ids": np.array([9, 6, 13, 5, 4, 14], dtype=np.int32),
        "token_ids": np.array(token_ids, dtype=np.int32),
        "behavior_logprobs": -0.125 * np.arange(1, len(token_ids) + 1, dtype=np.float32),
        "weight_spans": tuple(WeightSpan(weight_version=v, start=start, end=end) for v, start, end in covering),
        "finish_reason": FinishReason.STOP,
        "text": "01259",
        "latency_seconds": 0.25,
    }
    return Turn(**{**values, **fields})


def a_tool_turn(**fields: Any) -> Turn:
    """A turn that calls a tool, which answered."""
    values: dict[str, Any] = {
        "finish_reason": FinishReason.TOOL_CALLS,
        "tool_calls": (ToolCall(call_id="call-1", name="add", arguments='{"a": 5, "b": 2}'),),
        "tool_answers": (ToolAnswer(call_id="call-1", content="7", latency_seconds=0.125),),
        "temperature": 1.0,
        "max_tokens": 12,
    }
    return a_turn(**{**values, **fields})


def a_text_turn(**fields: Any) -> Turn:
    """A turn of a server that speaks only text: six sampled tokens, as it says."""
    nothing = np.zeros(0, dtype=np.int32)
    return a_turn(
        (), **{"prompt_token_ids": nothing, "reported_prompt_tokens": 6, "reported_completion_tokens": 6, **fields}
    )


def a_generator(**fields: Any) -> GeneratorIdentity:
    """Who generated: a scripted engine on host `node-1`."""
    values: dict[str, Any] = {
        "generator_id": "generator-1",
        "engine": "scripted",
        "engine_version": "1",
        "host": "node-1",
        "tokenizer_sha256": "ab" * 32,
        "chat_template_sha256": "cd" * 32,
    }
    return GeneratorIdentity(**{**values, **fields})


def a_failure(message: str, code: FailureCode = FailureCode.ENGINE) -> Failure:
    """Why a sample did not complete."""
    return Failure(code=code, message=message)


def a_generated(sample_index: int = 0, *, prompt: PromptSubmitted | None = None, **fields: Any) -> RolloutGenerated:
    """A completed sample of `prompt`; with `status` failed or unresolved it has no turns, and a failure."""
    asked = prompt if prompt is not None else a_prompt()
    status = fields.get("status", Status.COMPLETED)
    is_completed = status is Status.COMPLETED
    values: dict[str, Any] = {
        "rollout_id": rollout_id(asked.group_id, sample_index),
        "attempt_id": f"attempt-{sample_index}",
        "group_id": asked.group_id,
        "sample_index": sample_index,
        "group_size": asked.group_size,
        "prompt": asked,
        "turns": (a_turn(),) if is_completed else (),
        "status": status,
        "failure": None if is_completed else a_failure("engine died"),
        "generator": a_generator(),
        "started_at": NOON + timedelta(seconds=1),
        "finished_at": NOON + timedelta(seconds=2),
    }
    return RolloutGenerated(**{**values, **fields})


def a_rollout(reward: float | None = 1.0, sample_index: int = 0, **fields: Any) -> RolloutScored:
    """A scored sample; `reward=None` or a `status` other than completed gives one without a reward.

    `scoring` replaces the scoring; every other field goes to `a_generated`.
    """
    scoring = fields.pop("scoring", None)
    generated = a_generated(sample_index, **fields)
    if scoring is None:
        failed = generated.status if generated.status is not Status.COMPLETED else Status.UNRESOLVED
        is_completed = reward is not None and generated.status is Status.COMPLETED
        scoring = a_scoring(
            reward=reward if is_completed else None,
            status=Status.COMPLETED if is_completed else failed,
            failure=None if is_completed else generated.failure or a_failure("verifier crashed", FailureCode.CRASH),
        )
    return RolloutScored(rollout=generated, scoring=scoring)


def a_served(response_id: str = "chatcmpl-5f0c", **fields: Any) -> Served:
    """Whose call was answered: one of tenant `acme` that may train, in no session."""
    values: dict[str, Any] = {
        "response_id": response_id,
        "session": response_id,
        "route": "/v1/chat/completions",
        "key": "web",
        "tenant": "acme",
        "may_train": True,
    }
    return Served(**{**values, **fields})


def a_call(response_id: str = "chatcmpl-5f0c", *, num_choices: int = 1, **fields: Any) -> ServedCall:
    """A client's call as it was answered: plain, in no session; the fields of `caller` are those of a `Caller`."""
    caller: dict[str, Any] = {
        "name": "web",
        "key": ClientKey(key=SecretStr("key-of-the-web-client-000"), tenant="acme", may_train=True),
        "route": "/v1/chat/completions",
        "session": "",
        "subject": "5e" * 32,
        "messages": (Message(role="user", content="52910="),),
    }
    turn = a_turn()
    values: dict[str, Any] = {
        "response_id": response_id,
        "caller": Caller(**{**caller, **fields.pop("caller", {})}),
        "prompt_token_ids": turn.prompt_token_ids,
        "sampling": Sampling(max_tokens=12),
        "is_plain": True,
        "other_sampling": "",
        "choices": tuple(
            ServedChoice(
                number=number,
                token_ids=turn.token_ids,
                behavior_logprobs=turn.behavior_logprobs,
                weight_spans=turn.weight_spans,
                finish_reason=FinishReason.STOP,
                text=turn.text,
            )
            for number in range(num_choices)
        ),
        "started_at": NOON,
        "finished_at": NOON + timedelta(seconds=0.25),
    }
    return ServedCall(**{**values, **fields})


def a_served_answer(response_id: str = "chatcmpl-5f0c", *, choice: int = 0, **fields: Any) -> RolloutGenerated:
    """A choice of a client's answer, as a generator records it; `served` and every other field go to its builder.

    Without a `prompt` it is the only choice, or the last.
    """
    prompt = fields.pop("prompt", None) or a_served_prompt(response_id, group_size=choice + 1)
    served = fields.pop("served", None) or a_served(response_id, choice=choice)
    return a_generated(choice, prompt=prompt, served=served, **fields)


def a_served_prompt(response_id: str = "chatcmpl-5f0c", **fields: Any) -> PromptSubmitted:
    """What a client asked a generator: of no data set, for nobody's training."""
    values: dict[str, Any] = {
        "prompt_id": f"serve/{response_id}",
        "purpose": Purpose.SERVE,
        "reference_answer": None,
        "group_size": 1,
        "metadata": {},
        "source": PromptSource(),
        "producer": "",
        "sequence": 0,
        "subject": "5e" * 32,
    }
    return a_prompt(0, **{**values, **fields})


def a_served_rollout(
    reward: float | None = 1.0, response_id: str = "chatcmpl-5f0c", *, choice: int = 0, **fields: Any
) -> RolloutScored:
    """The same as scorers give it on; `scoring` replaces the scoring."""
    scoring = fields.pop("scoring", None) or a_scoring(reward)
    return RolloutScored(rollout=a_served_answer(response_id, choice=choice, **fields), scoring=scoring)


def a_feedback(number: float | None = 1.0, **fields: Any) -> FeedbackGiven:
    """A thumb of tenant `acme` on the answer of `a_served_answer()`."""
    values: dict[str, Any] = {
        "feedback_id": "7f" * 16,
        "response_id": "chatcmpl-5f0c",
        "metric": "thumbs",
        "number": number,
        "tags": {"page": "help"},
        "client": "web",
        "tenant": "acme",
        "given_at": NOON + timedelta(seconds=60),
        "submitted_at": NOON + timedelta(seconds=61),
    }
    return FeedbackGiven(**{**values, **fields})


def a_turn_progress(number: int = 0, **fields: Any) -> TurnProgress:
    """That turn `number` of the first sample of `a_prompt()` is done."""
    values: dict[str, Any] = {
        "rollout_id": rollout_id(group_id(RUN, "sort_digits/17", 0), 0),
        "attempt_id": "a" * 32,
        "generator_id": "generator-1",
        "kind": ProgressKind.TURN,
        "number": number,
        "turn": a_tool_turn(),
        "noted_at": NOON,
    }
    return TurnProgress(**{**values, **fields})


def a_scoring(reward: float | None = 1.0, **fields: Any) -> Scoring:
    """What the scorer found."""
    values: dict[str, Any] = {
        "scorer": "scorer-1",
        "scorer_version": "0.1.0",
        "reward": reward,
        "components": {} if reward is None else {"exact_match": reward},
        "status": Status.UNRESOLVED if reward is None else Status.COMPLETED,
        "failure": a_failure("verifier crashed", FailureCode.CRASH) if reward is None else None,
        "scored_at": NOON + timedelta(seconds=3),
    }
    return Scoring(**{**values, **fields})


def a_group(rewards: Sequence[float], *, prompt: PromptSubmitted | None = None, **fields: Any) -> list[RolloutScored]:
    """All samples of one group, one per reward."""
    asked = prompt if prompt is not None else a_prompt(group_size=len(rewards))
    return [a_rollout(reward, index, prompt=asked, **fields) for index, reward in enumerate(rewards)]


def a_trained(rollout: RolloutScored, *, partition: int = 0, offset: int = 0) -> TrainedRollout:
    """That a step trained on `rollout`, found at this place in `scored`."""
    generated = rollout.rollout
    return TrainedRollout(
        rollout_id=generated.rollout_id, attempt_id=generated.attempt_id, partition=partition, offset=offset
    )


def an_entry(kind: EntryKind = EntryKind.STEP, **fields: Any) -> LedgerEntry:
    """A ledger entry, by default the first step: version 1 from version 0."""
    has_parent = kind not in (EntryKind.DROPS, EntryKind.SKIP)
    values: dict[str, Any] = {
        "kind": kind,
        "incarnation": "trainer-1",
        "step": 1,
        "weight_version": 1,
        "parent_version": 0 if has_parent else None,
        "metrics": {"loss": 0.5, "reward_mean": 0.75} if kind is EntryKind.STEP else {},
        "started_at": NOON + timedelta(seconds=4),
        "finished_at": NOON + timedelta(seconds=5),
    }
    return LedgerEntry(**{**values, **fields})


def published(weight_version: int = 1, **fields: Any) -> WeightsPublished:
    """A full version of two files; its parent is the version before."""
    values: dict[str, Any] = {
        "model": "policy",
        "weight_version": weight_version,
        "parent_version": weight_version - 1 if weight_version else None,
        "uri": f"weights/{weight_version}-trainer-1",
        "files": (
            WeightFile(name="config.json", num_bytes=512, sha256="01" * 32),
            WeightFile(name="model.safetensors", num_bytes=4_246_784, sha256="23" * 32),
        ),
        "step": weight_version,
        "created_at": NOON,
    }
    return WeightsPublished(**{**values, **fields})


def applied(weight_version: int = 1, **fields: Any) -> WeightsApplied:
    """That generator-1 serves the version."""
    values: dict[str, Any] = {
        "generator_id": "generator-1",
        "weight_version": weight_version,
        "outcome": ApplyOutcome.APPLIED,
        "stall_seconds": 0.027,
        "load_seconds": 0.08,
        "applied_at": NOON + timedelta(seconds=6),
    }
    return WeightsApplied(**{**values, **fields})


def a_progress(producer: str = "producer-0", **fields: Any) -> ProducerProgress:
    """That a producer submitted 18 prompts of a file, of which one group is open."""
    values: dict[str, Any] = {
        "producer": producer,
        "incarnation": 1_772_366_400_250_000,
        "source": "train.jsonl@5891b5b522d5",
        "claimed_at": NOON,
        "mark": "18",
        "next_sequence": 18,
        "open_groups": (group_id(RUN, "sort_digits/17", 0),),
        "recently_closed": (group_id(RUN, "sort_digits/16", 0),),
        "ledger_offset": 40,
        "prompts_offsets": {"0": 11, "1": 9},
        "written_at": NOON + timedelta(seconds=1),
    }
    return ProducerProgress(**{**values, **fields})
