"""What ingest takes of clients, and what it tells them of the rest."""

from datetime import timedelta
from typing import Any

import pytest

from rollstream.http.keys import ClientKey
from rollstream.ingest.entries import MOST_ENTRIES, FeedbackEntry, PromptEntry, entries_in
from rollstream.ingest.records import Sender, entry_id, feedback_of, prompt_of
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import RefusedRequestError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Message, Sampling
from tests.harness.builders import NOON, RUN

SETTINGS = StageSettings(run=RUN)
FEEDBACK = {"response_id": "chatcmpl-5f0c", "metric": "thumbs", "number": 1}
PROMPT = {"messages": "52910=", "environment": "sort_digits", "purpose": "train"}


def a_sender(**fields: Any) -> Sender:
    key = ClientKey(key="k" * 24, **{"tenant": "acme", "may_train": True, **fields})
    return Sender(client="web", key=key, received_at=NOON)


def posed(fields: dict[str, Any], **of_key: Any) -> Any:
    [entry] = entries_in({**PROMPT, **fields}, PromptEntry)
    return prompt_of(entry, "an id", a_sender(**of_key), SETTINGS)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"response_id": None}, "it names nothing: name one of"),
        ({"session": "s"}, r"it names \['response_id', 'session'\]"),
        ({"number": None}, "it says nothing"),
        ({"number": 1e300}, "number: Input should be less than or equal to 1000000000, got 1e\\+300"),
        ({"number": "5"}, "number: Input should be a valid number, got '5'"),
        ({"number": True}, "number: Input should be a valid number, got True"),
        ({"metric": ""}, "metric: String should have at least 1 character"),
        ({"metric": "a\x00b"}, "metric: String should match pattern"),
        ({"choice": -1}, "choice: Input should be greater than or equal to 0, got -1"),
        ({"response_id": None, "session": "s", "choice": 1}, "`choice` is one of a response"),
        ({"text": "x" * 65_537}, "text: String should have at most 65536"),
        ({"tags": {str(number): "" for number in range(65)}}, "tags: Dictionary should have at most 64"),
        ({"given_at": "yesterday"}, "given_at: Input should be a valid datetime"),
        ({"given_at": "2026-03-01T12:00:00"}, "given_at: Input should have timezone info"),
        ({"given_at": "0001-01-01T00:00:00+14:00"}, "given_at: Input should be greater than or equal"),
        ({"reward": 1}, "reward: Extra inputs are not permitted, got 1"),
        ({"idempotency_key": "x" * 256}, "idempotency_key: String should have at most 255"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_feedback_that_is_no_feedback_is_refused_with_its_place_and_the_bound(change: dict[str, Any], why: str) -> None:
    with pytest.raises(RefusedRequestError, match=f"entry 1: {why}") as refused:
        entries_in([FEEDBACK, {**FEEDBACK, **change}], FeedbackEntry)
    assert (refused.value.status, refused.value.reason) == (422, "invalid")


@pytest.mark.parametrize(
    ("body", "status"),
    [(None, 422), ([], 422), ("text", 422), (3, 422), ([[FEEDBACK]], 422), ([FEEDBACK] * (MOST_ENTRIES + 1), 413)],
    ids=lambda value: str(value)[:20],
)
def test_a_body_that_is_no_list_of_entries_is_refused(body: Any, status: int) -> None:
    with pytest.raises(RefusedRequestError) as refused:
        entries_in(body, FeedbackEntry)
    assert refused.value.status == status


def test_feedback_is_of_the_client_of_the_key_and_its_tenant() -> None:
    [entry] = entries_in({**FEEDBACK, "text": "good", "tags": {"page": "3"}, "choice": 2}, FeedbackEntry)
    record = feedback_of(entry, "an id", a_sender())
    assert (record.client, record.tenant, record.feedback_id) == ("web", "acme", "an id")
    assert (record.response_id, record.choice, record.number, record.text) == ("chatcmpl-5f0c", 2, 1.0, "good")
    assert record.given_at == record.submitted_at == NOON


@pytest.mark.parametrize(("hours", "believed"), [(-5, -5), (5, 0)])
def test_a_clients_clock_is_not_believed_beyond_ours(hours: int, believed: int) -> None:
    said = (NOON + timedelta(hours=hours)).isoformat()
    [entry] = entries_in({**FEEDBACK, "given_at": said}, FeedbackEntry)
    assert feedback_of(entry, "an id", a_sender()).given_at == NOON + timedelta(hours=believed)


def test_what_comes_again_with_its_key_has_the_same_id_and_only_that() -> None:
    assert entry_id(RUN, "web", "a key", 0) == entry_id(RUN, "web", "a key", 0)
    inputs = [(RUN, "web", "a key", 0), ("other", "web", "a key", 0), (RUN, "app", "a key", 0), (RUN, "web", "b", 0)]
    others = {entry_id(*given) for given in [*inputs, (RUN, "web", "a key", 1)]}
    assert len(others) == 5
    assert entry_id(RUN, "web", None, 0) != entry_id(RUN, "web", None, 0)


def test_a_prompt_is_as_its_client_says_and_of_a_group_that_follows_from_its_id() -> None:
    prompt = posed({"reference_answer": "01259", "metadata": {"a": "b"}, "sampling": {"max_tokens": 7, "stop": ["x"]}})
    assert prompt.messages == (Message(role="user", content="52910="),)
    assert (prompt.purpose, prompt.environment, prompt.group_size) == ("train", "sort_digits", 8)
    assert prompt.sampling == Sampling(max_tokens=7, stop=("x",))
    assert prompt.prompt_id == "ingest/web/an id"
    assert prompt.group_id == group_id(RUN, prompt.prompt_id, 0)


def test_chat_messages_and_tools_are_read_as_openai_writes_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    prompt = posed({"messages": [{"role": "user", "content": parts}], "tools": [{"type": "function"}]})
    assert prompt.messages == (Message(role="user", content="ab"),)
    assert prompt.tools == ('{"type": "function"}',)


def test_the_key_says_environment_and_sampling_where_the_client_does_not() -> None:
    served = {"purpose": "serve", "environment": None, "sampling": {"temperature": 0.3, "top_k": 4, "max_tokens": 3}}
    prompt = posed(served, environment="word_count", sampling="plain")
    assert (prompt.environment, prompt.group_size) == ("word_count", 1)
    assert prompt.sampling == Sampling(max_tokens=3)


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"environment": None}, 422, "'' is not one of the environments"),
        ({"environment": "nobody_has_it"}, 422, "is not one of the environments"),
        ({"purpose": "serve", "environment": "nobody_has_it"}, 422, "is not one of the environments"),
        ({"purpose": "serve", "agent": {"name": "undeclared"}}, 422, "is not one of the agents"),
        ({"purpose": "evaluate"}, 422, "purpose: Input should be 'serve' or 'train', got 'evaluate'"),
        ({"group_size": 1}, 422, "group_size 1: "),
        ({"group_size": 5000}, 422, "group_size 5000 is above 1024"),
        ({"sampling": {"temperature": 0}}, 422, "training needs temperature"),
        ({"sampling": {"temperature": -1}}, 422, "sampling.temperature: Input should be greater"),
        ({"sampling": {"max_tokens": "7"}}, 422, "sampling.max_tokens: Input should be a valid integer, got '7'"),
        ({"sampling": {"max_tokens": 10**9}}, 422, "max_tokens 1000000000 is above"),
        ({"messages": []}, 422, "neither text nor a list of messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 422, "a message has no role that is known"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 422, "content is not text"),
        ({"messages": [{"role": "user", "content": "x"}] * 5000}, 422, "messages: Tuple should have at most 4096"),
        ({"metadata": {"a": 1}}, 422, "metadata.a: Input should be a valid string, got 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_prompt_that_nobody_could_answer_is_refused(change: dict[str, Any], status: int, why: str) -> None:
    with pytest.raises(RefusedRequestError, match=why) as refused:
        posed(change)
    assert refused.value.status == status


def test_a_client_without_consent_may_not_pose_prompts_to_train_on() -> None:
    with pytest.raises(RefusedRequestError, match="client web may not train") as refused:
        posed({}, may_train=False)
    assert (refused.value.status, refused.value.reason) == (403, "not_allowed")
    assert posed({"purpose": "serve"}, may_train=False).purpose == "serve"
