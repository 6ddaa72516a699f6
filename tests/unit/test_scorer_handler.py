"""What the scorer's handler makes of a rollout, without Kafka."""

from datetime import UTC, datetime

import pytest

from rollstream.environments.pool.verdicts import Sample, Verdict
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.errors import RecordTooLargeError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status
from rollstream.schemas.topics import SCORED
from rollstream.scorer.handler import ScorerIdentity, annotated, sample_of, without_tokens
from rollstream.scorer.settings import ScorerSettings
from tests.harness.builders import a_failure, a_generated, a_prompt, a_rollout, a_turn

SCORER = ScorerIdentity(scorer_id="scorer-1", version="0.1.0")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_rubric_sees_the_texts_of_all_turns_and_never_the_tokens() -> None:
    prompt = a_prompt(metadata={"difficulty": "5"})
    asked = sample_of(a_generated(prompt=prompt, turns=(a_turn(text="first"), a_turn(text="last"))))
    assert isinstance(asked, Sample)
    assert asked.environment == "sort_digits"
    assert (asked.answer.completion, asked.answer.assistant_messages) == ("last", ("first", "last"))
    assert (asked.answer.messages, asked.answer.reference_answer) == (prompt.messages, "01259")
    assert asked.answer.metadata == {"difficulty": "5"}


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNRESOLVED])
def test_a_rollout_that_did_not_complete_keeps_its_status_and_failure_and_gets_no_reward(status: Status) -> None:
    why = a_failure("why")
    rollout = a_generated(status=status, failure=why)
    verdict = sample_of(rollout)
    assert verdict == Verdict(status=status, failure=why)
    scoring = annotated(rollout, verdict, SCORER, NOON).scoring
    assert (scoring.status, scoring.failure, scoring.reward) == (status, why, None)
    unknown = sample_of(a_generated(prompt=a_prompt(environment="")))
    assert isinstance(unknown, Verdict)
    assert (unknown.status, unknown.failure and unknown.failure.code) == (Status.FAILED, FailureCode.NO_ENVIRONMENT)


def test_a_verdict_is_written_beside_the_untouched_rollout() -> None:
    rollout = a_generated()
    verdict = Verdict(status=Status.COMPLETED, reward=1.3, components={"exact": 1.0, "format": 1.0})
    scored = annotated(rollout, verdict, SCORER, NOON)
    assert scored.rollout == rollout
    assert (scored.scoring.reward, scored.scoring.components) == (1.3, {"exact": 1.0, "format": 1.0})
    assert (scored.scoring.scorer, scored.scoring.scorer_version) == ("scorer-1", "0.1.0")


def test_an_error_that_no_text_can_hold_is_still_written() -> None:
    verdict = Verdict(status=Status.UNRESOLVED, failure=a_failure("lone \udc80 surrogate " + "x" * 10_000))
    scored = annotated(a_generated(), verdict, SCORER, NOON)
    codec = AvroCodec(SCORED)
    assert codec.decode(codec.encode(scored)).scoring.failure == scored.scoring.failure


def test_a_result_over_the_size_limit_fails_without_its_tokens() -> None:
    small = without_tokens(a_rollout(1.0), RecordTooLargeError("8 MiB"))
    assert (small.rollout.turns, small.rollout.status) == ((), Status.FAILED)
    assert (small.scoring.reward, small.scoring.status) == (None, Status.FAILED)
    assert str(small.scoring.failure) == "too_large: 8 MiB"
    codec = AvroCodec(SCORED)
    assert codec.decode(codec.encode(small)) == small


@pytest.mark.parametrize(
    "deadlines",
    [
        {"batch_deadline_seconds": 20.0, "session_timeout_seconds": 20.0},
        {"sample_deadline_seconds": 16.0},
        {"load_deadline_seconds": 16.0},
    ],
)
def test_deadlines_that_do_not_nest_are_refused(deadlines: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="_seconds"):
        ScorerSettings(run="demo", **deadlines)  # type: ignore[arg-type]
