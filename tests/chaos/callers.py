"""The clients of a campaign: they ask generators over HTTP, and rate the answers that reached them whole.

What they saw is compared with the topics in the end. So they use nothing of this project, and try again only where a
client must: a rating until ingest has confirmed it.
"""

import http.client
import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.serving import METRIC, ServingRun

_ANSWER_SECONDS: Final = 10.0
_WAIT_SECONDS: Final = 0.3
_LEAVING_RATIO: Final = 0.2
_STREAMED_RATIO: Final = 0.5
_RATED_RATIO: Final = 0.7
_REVISED_RATIO: Final = 0.2
_MOST_WAITING: Final = 20
"""Ratings of one caller that ingest has not confirmed; above, it asks nothing more."""
_ENDS_SECONDS: Final = 60.0
_TAKEN: Final = 202
_AGAIN: Final = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeAnswer:
    """An answer that reached its caller whole. `texts`: of its choices, in their order."""

    response_id: str
    key: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """What a caller says of a choice. It is posted under its own idempotency key until ingest has confirmed it."""

    key: str
    response_id: str
    choice: int
    number: float
    idempotency_key: str = field(default_factory=lambda: uuid.uuid4().hex)


class Callers:
    """`num_callers` threads. What they saw may be read once they have ended."""

    def __init__(self, run: ServingRun, *, num_callers: int, seed: int) -> None:
        self._run = run
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(random.Random(f"{seed}/caller/{number}"),), daemon=True)
            for number in range(num_callers)
        ]
        self._lock = threading.Lock()
        self.answers: list[WholeAnswer] = []
        self.confirmed: list[Rating] = []
        self.outcomes: Counter[str] = Counter()
        """Calls by what became of them."""
        self.problems: list[str] = []
        """Answers that no fault explains."""

    @contextmanager
    def calling(self) -> Iterator[None]:
        """They call as long as the block runs, unless they are told to end before."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()

    def end(self) -> None:
        """Have them ask nothing more, and post what is still to be posted. The servers must be there."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_ENDS_SECONDS + 2 * _ANSWER_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            self.problems.append(f"a caller did not end within {_ENDS_SECONDS:g} s")

    def _call(self, draw: random.Random) -> None:
        waiting: list[Rating] = []
        while not self._stop.is_set():
            answer = self._ask(draw) if len(waiting) < _MOST_WAITING else None
            if answer is None:
                self._stop.wait(_WAIT_SECONDS)
            else:
                waiting += _ratings(answer, draw)
            waiting = self._posted(waiting, draw)
        tries = int(_ENDS_SECONDS / _WAIT_SECONDS)
        while waiting and tries:
            waiting = self._posted(waiting, draw)
            tries -= 1
            threading.Event().wait(_WAIT_SECONDS if waiting else 0)
        if waiting:
            self._note_problem(f"{len(waiting)} ratings were not confirmed within {_ENDS_SECONDS:g} s")

    def _ask(self, draw: random.Random) -> WholeAnswer | None:
        """One call; None if it brought no whole answer."""
        key, address = draw.choice(sorted(self._run.keys)), draw.choice(self._run.generators)
        number, streams, leaves = draw.choice((1, 2)), draw.random() < _STREAMED_RATIO, draw.random() < _LEAVING_RATIO
        digits = "".join(draw.sample("0123456789", 5))
        body = {
            "model": "policy",
            "messages": [{"role": "user", "content": f"{digits}="}],
            "max_tokens": 12,
            "n": number,
            "stream": streams,
        }
        try:
            if leaves:
                self._leave(address, key, body, draw.random())
                outcome, found = "left", None
            else:
                status, content = _posted_to(address, "/v1/chat/completions", self._run.keys[key], body)
                outcome, found = str(status), _read(content, key, streams) if status == http.client.OK else None
        except (OSError, http.client.HTTPException):
            outcome, found = "no connection", None
        with self._lock:
            self.outcomes[outcome] += 1
            if found is not None:
                self.answers.append(found)
        if outcome.isdecimal() and int(outcome) not in (http.client.OK, *_AGAIN):
            self._note_problem(f"a call was answered with {outcome}: {content[:500]!r}")
        elif outcome == "200" and (found is None or len(found.texts) != number):
            self._note_problem(f"an answer to n={number} is not whole: {content[:500]!r}")
        return found

    def _leave(self, address: str, key: str, body: dict[str, Any], seconds: float) -> None:
        """Ask, and leave before the answer may have come."""
        connection = http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), _headers(self._run.keys[key]))
            self._stop.wait(seconds)
        finally:
            connection.close()

    def _posted(self, ratings: Sequence[Rating], draw: random.Random) -> list[Rating]:
        """Post them in their order; those from the first on that was not confirmed."""
        for number, rating in enumerate(ratings):
            if not self._is_confirmed(rating, draw.choice(self._run.ingest)):
                return list(ratings[number:])
        return []

    def _is_confirmed(self, rating: Rating, address: str) -> bool:
        body = {
            "response_id": rating.response_id,
            "choice": rating.choice,
            "metric": METRIC,
            "number": rating.number,
        }
        headers = {"Idempotency-Key": rating.idempotency_key}
        try:
            status, content = _posted_to(address, "/v1/feedback", self._run.keys[rating.key], body, headers)
        except (OSError, http.client.HTTPException):
            return False
        if status == _TAKEN:
            with self._lock:
                self.confirmed.append(rating)
        elif status not in _AGAIN:
            self._note_problem(f"feedback was answered with {status}: {content[:500]!r}")
        return status not in _AGAIN

    def _note_problem(self, what: str) -> None:
        with self._lock:
            self.problems.append(what)


def _ratings(answer: WholeAnswer, draw: random.Random) -> Iterator[Rating]:
    """What a caller says of an answer: of some choices nothing, of some it thinks again."""
    for choice in range(len(answer.texts)):
        if draw.random() < _RATED_RATIO:
            for _ in range(1 + (draw.random() < _REVISED_RATIO)):
                yield Rating(
                    key=answer.key, response_id=answer.response_id, choice=choice, number=draw.choice((-1.0, 1.0))
                )


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def _posted_to(
    address: str, path: str, key: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and whole body of the answer; raises `OSError` or `HTTPException` without one."""
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {**_headers(key), **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _read(content: bytes, key: str, streams: bool) -> WholeAnswer | None:
    """An answer of `/v1/chat/completions`; None if it is cut off."""
    texts: dict[int, str] = {}
    parts = _events(content) if streams else [json.loads(content)]
    for part in parts or ():
        for choice in part["choices"]:
            said = (choice["delta"] if streams else choice["message"]).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    if not parts:
        return None
    return WholeAnswer(response_id=parts[0]["id"], key=key, texts=tuple(texts[index] for index in sorted(texts)))


def _events(content: bytes) -> list[Any] | None:
    """The values of a stream of events; None without its end."""
    lines = [line.removeprefix("data: ") for line in content.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines[:-1]] if lines[-1:] == ["[DONE]"] else None
