"""The user's function that sees each record before anybody else, and says what is kept of it."""

import pkgutil
from collections.abc import Callable
from typing import Literal, TypeAlias

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
    try:
        found = pkgutil.resolve_name(path)
    except KeyboardInterrupt:
        raise
    # BaseException: code of a user may also call sys.exit.
    except BaseException as error:
        raise ConfigurationError(
            f"serve.hook = {path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"serve.hook = {path!r} is a {type(found).__name__}: name a function of one rollout")
    hook: Hook = found
    return hook
