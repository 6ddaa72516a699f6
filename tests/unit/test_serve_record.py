"""What is recorded of a client's call."""

from dataclasses import replace

import numpy as np
import pytest

from rollstream.generator.serve.record import can_train, rollouts_of, text_alone
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.prompt import Purpose
from rollstream.schemas.rollout import FinishReason, Status
from rollstream.schemas.topics import SERVE_ROLLOUTS
from tests.harness.builders import a_call, a_generated

IDENTITY = a_generated().generator


def test_the_choices_of_a_call_are_the_samples_of_one_group() -> None:
    call = a_call(num_choices=3)
    # A choice whose client left before its first token has no record.
    call = replace(call, choices=(call.choices[0], call.choices[2]))
    rollouts = rollouts_of(call, run="demo", identity=IDENTITY)
    assert len({one.group_id for one in rollouts}) == 1
    assert [one.sample_index for one in rollouts] == [0, 1]
    assert [one.group_size for one in rollouts] == [2, 2]
    assert [one.served.choice for one in rollouts if one.served] == [0, 2]
    for rollout, choice in zip(rollouts, call.choices, strict=True):
        assert rollout.prompt.purpose is Purpose.SERVE
        assert rollout.prompt.subject == call.caller.subject
        assert rollout.status is Status.COMPLETED
        (turn,) = rollout.turns
        assert turn.token_ids.tolist() == choice.token_ids.tolist()
        assert turn.behavior_logprobs.tolist() == choice.behavior_logprobs.tolist()
        assert turn.weight_spans == choice.weight_spans
        assert turn.latency_seconds == 0.25
        AvroCodec(SERVE_ROLLOUTS).decode(AvroCodec(SERVE_ROLLOUTS).encode(rollout))


def test_two_calls_are_two_groups_even_if_their_answers_have_one_id() -> None:
    one, other = (rollouts_of(a_call(), run="demo", identity=IDENTITY)[0] for _ in range(2))
    assert one.group_id != other.group_id


def test_a_call_without_a_session_is_its_own() -> None:
    (own,) = rollouts_of(a_call("chatcmpl-1"), run="demo", identity=IDENTITY)
    (named,) = rollouts_of(a_call(caller={"session": "chat-7"}), run="demo", identity=IDENTITY)
    assert own.served
    assert own.served.session == "chatcmpl-1"
    assert named.served
    assert named.served.session == "chat-7"


def test_the_key_itself_is_nowhere_in_a_record() -> None:
    call = a_call()
    (rollout,) = rollouts_of(call, run="demo", identity=IDENTITY)
    assert call.caller.key.key.get_secret_value() not in rollout.model_dump_json()
    assert call.caller.key.key.get_secret_value().encode() not in AvroCodec(SERVE_ROLLOUTS).encode(rollout)


def test_text_alone_has_no_tokens_and_never_trains() -> None:
    (rollout,) = rollouts_of(a_call(), run="demo", identity=IDENTITY)
    text = text_alone(rollout)
    (turn,) = text.turns
    assert can_train(rollout)
    assert not can_train(text)
    assert text.served
    assert not text.served.may_train
    assert turn.text == rollout.turns[0].text
    assert [len(turn.token_ids), len(turn.prompt_token_ids), len(turn.behavior_logprobs)] == [0, 0, 0]
    assert turn.reported_prompt_tokens == len(rollout.turns[0].prompt_token_ids)
    assert turn.num_completion_tokens == len(rollout.turns[0].token_ids)
    assert turn.weight_spans == ()
    AvroCodec(SERVE_ROLLOUTS).decode(AvroCodec(SERVE_ROLLOUTS).encode(text))


@pytest.mark.parametrize("changed", [{"is_plain": False}, {"caller": {"key": None}}])
def test_what_is_not_plain_or_without_consent_can_not_train(changed: dict[str, object]) -> None:
    if "caller" in changed:
        key = a_call().caller.key.model_copy(update={"may_train": False})
        changed = {"caller": {"key": key}}
    (rollout,) = rollouts_of(a_call(**changed), run="demo", identity=IDENTITY)
    assert not can_train(rollout)


def test_an_answer_whose_client_left_is_completed_and_truncated() -> None:
    call = a_call()
    call = replace(call, choices=(replace(call.choices[0], finish_reason=FinishReason.ABORT),))
    (rollout,) = rollouts_of(call, run="demo", identity=IDENTITY)
    assert rollout.status is Status.COMPLETED
    assert rollout.is_truncated
    assert np.array_equal(rollout.turns[0].token_ids, call.choices[0].token_ids)
