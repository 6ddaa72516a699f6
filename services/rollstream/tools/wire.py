"""The headers by which servers of tools know a session.

A server that knows them answers 409 to a lower attempt than the highest that it has seen of an id, so that a generator
that was thought dead can change nothing any more.
"""

from typing import Final
from urllib.parse import quote

SESSION_HEADER: Final = "Rollstream-Session"
ATTEMPT_HEADER: Final = "Rollstream-Attempt"


def session_headers(session_id: str, attempt: int) -> dict[str, str]:
    """The id is a stranger's text: it is written as in a URL."""
    return {SESSION_HEADER: quote(session_id, safe="/-_."), ATTEMPT_HEADER: str(attempt)}
