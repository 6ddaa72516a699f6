"""The tools of one attempt at a sample: opened before its agent runs, asked for a verdict, and closed at its end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from rollstream.agents.session import Session
from rollstream.environments.session import VERIFY
from rollstream.process.masking import SECRETS
from rollstream.rows.conversation import REFERENCE
from rollstream.schemas.errors import EngineDeadError, FailedSampleError, ToolError
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.ids import rollout_id
from rollstream.tools.protocol import ToolSession, ToolSet

_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def opened_tools(tools: Mapping[str, ToolSet], name: str, session: Session) -> AsyncIterator[ToolSession]:
    """The tools called `name`, for this sample; closed at its end. Raises what `ToolSet.open` raises.

    A sample that is broken off, and of which nothing is published, leaves its session to whoever goes on with it.
    """
    if name not in tools:
        raise FailedSampleError(
            FailureCode.BAD_AGENT_OPTIONS,
            f"tools {name[:100]!r} are none of this run: {', '.join(sorted(tools)) or 'there are none'}; declare them "
            "under [tools.NAME] in the run's settings",
        )
    session_id = rollout_id(session.prompt.group_id, session.calls.sample_index)
    attempt = await _attempt_at(session, name, session_id, reopens=tools[name].reopens)
    opened = await tools[name].open(session_id, attempt, _task_of(session))
    is_left = False
    try:
        yield opened
    except (asyncio.CancelledError, EngineDeadError):
        if session.journal is not None and tools[name].reopens and not session.is_late():
            is_left, session.journal.left = True, partial(_closed, opened, name, session_id)
        raise
    finally:
        await _closed(opened, name, session_id, is_left=is_left)


async def close_left(tools: Mapping[str, ToolSet], session: Session) -> None:
    """Close what an earlier attempt at the sample, which is complete, may have left open."""
    left = None if session.journal is None else session.journal.earlier.session
    if left is None or left.tools not in tools:
        return
    try:
        async with opened_tools(tools, left.tools, session):
            pass
    except ToolError as error:
        _LOG.warning("tools %s: a session may be open still: %s", left.tools, SECRETS.masked(str(error)))


async def _closed(opened: ToolSession, name: str, session_id: str, *, is_left: bool = False) -> None:
    # The sample is what it is, also if its server may hold the session still.
    try:
        await (opened.leave() if is_left else opened.close())
    except ToolError as error:
        _LOG.warning("tools %s: session %s was not closed: %s", name, session_id, SECRETS.masked(str(error)))


async def _attempt_at(session: Session, name: str, session_id: str, *, reopens: bool) -> int:
    """Which attempt at the session of tools this is. What it did is lost with its process, unless the set reopens."""
    if session.journal is None:
        return 0
    if not reopens:
        session.journal.forget()
        return 0
    return await session.journal.opening(name, session_id)


async def keep_verdict(session: Session) -> None:
    """Note what the tools say of the whole sample, which the environment `session` passes on. Raises `ToolError`."""
    if session.tool_session is None or not session.turns:
        return
    last = session.turns[-1]
    conversation = [one.model_dump(mode="json") for one in session.conversation(len(session.turns) - 1)]
    said = {"text": last.text, "messages": conversation, "observations": session.observations}
    verdict = await session.tool_session.verify(said)
    if verdict is None:
        return
    try:
        session.note(VERIFY, json.dumps(verdict, ensure_ascii=False))
    except ValueError as error:
        raise ToolError(f"the verdict of the sample can't be kept: {error}") from error


def _task_of(session: Session) -> dict[str, Any]:
    """What the tools are told of the task. The model sees none of it but what they answer."""
    return session.prompt.model_dump(mode="json", include={"messages", "tools", REFERENCE, "metadata"})
