"""The user's function that sees each record before anybody else, and says what is kept of it."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from rollstream.process.settings.declared import imported
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.rollout import RolloutGenerated

Verdict: TypeAlias = Literal["keep", "text", "drop"]
Hook: TypeAlias = Callable[[RolloutGenerated], Verdict]
"""keep: all of it. text: without tokens, so that it never trains. drop: nothing.

It is called in the thread that records, so an answer waits for it, and so do those after it.
"""


def keep_all(_: RolloutGenerated) -> Verdict:
    """The hook where the settings name none."""
    return "keep"


def load_hook(path: str | None) -> Hook:
    """Import the function at `package.module.name`. Raises `ConfigurationError`."""
    if path is None:
        return keep_all
    found = imported("serve.hook", path)
    if not callable(found):
        raise ConfigurationError(f"serve.hook = {path!r} is a {type(found).__name__}: name a function of one rollout")
    hook: Hook = found
    return hook
