"""What an error of the client means for a trainer's transaction, and how long a commit waits for its answer."""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from rollstream.bus.transaction import TRANSACTION_TIMEOUT_SECONDS, transaction_error, until_answered
from rollstream.schemas.errors import BrokerError, ExpiredTransactionError, FencedError, RollstreamError

NO_ANSWER = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))
REFUSED = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))


@pytest.mark.parametrize(
    ("code", "seconds", "kind"),
    [
        (KafkaError._FENCED, 0.1, FencedError),
        (KafkaError.PRODUCER_FENCED, 0.1, FencedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, 0.1, FencedError),
        (KafkaError._FENCED, TRANSACTION_TIMEOUT_SECONDS, ExpiredTransactionError),
        (KafkaError._TIMED_OUT, TRANSACTION_TIMEOUT_SECONDS, BrokerError),
    ],
)
def test_only_a_transaction_that_was_refused_within_its_time_means_that_another_process_took_over(
    code: int, seconds: float, kind: type[RollstreamError]
) -> None:
    assert type(transaction_error("demo.trainer", KafkaException(KafkaError(code)), "committing", seconds)) is kind


def test_an_id_that_the_broker_forgot_while_its_trainer_was_idle_is_no_takeover() -> None:
    forgotten = KafkaException(KafkaError(KafkaError.INVALID_PRODUCER_ID_MAPPING))
    error = transaction_error("demo.trainer", forgotten, "committing", 0.1)
    assert isinstance(error, ExpiredTransactionError)
    assert error.exit_code == 70
    assert "does not know demo.trainer any more" in str(error)


def answers(*errors: KafkaException | None) -> Callable[[], None]:
    """A client's function that gives these answers one after the other, the last one for ever."""
    left = list(errors)

    def call() -> None:
        error = left.pop(0) if len(left) > 1 else left[0]
        if error is not None:
            raise error

    return call


def test_a_commit_without_an_answer_is_asked_for_again_within_its_time_and_a_refused_one_is_not() -> None:
    until_answered(60.0)(answers(NO_ANSWER, NO_ANSWER, None))
    for seconds, given in ((0.05, (NO_ANSWER,)), (60.0, (NO_ANSWER, REFUSED, None))):
        with pytest.raises(KafkaException) as raised:
            until_answered(seconds)(answers(*given))
        assert raised.value is (REFUSED if REFUSED in given else NO_ANSWER)
