"""`POST /aggregate_metrics`: metrics of rollouts that a client sends, by the code that measures files of them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rollstream.gym.aggregate import agent_metrics, task_metrics
from rollstream.gym.names import ROLLOUT, TASK
from rollstream.gym.score_table import ScoreTable
from rollstream.gym.servers.answers import object_of, refused
from rollstream.schemas.errors import ConfigurationError

_AGENT: Final = "agent"


async def aggregate(request: Request) -> Response:
    """Metrics of all, and of each task, of the rows under `verify_responses`."""
    rows = object_of(request).get("verify_responses")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise refused("`verify_responses` is no list of rows")
    try:
        # It takes long for many rows, and other calls go on meanwhile.
        return JSONResponse(await asyncio.to_thread(_metrics, rows))
    except ConfigurationError as error:
        raise refused(str(error)) from error


def _metrics(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    table, seen = ScoreTable(), Counter[int]()
    try:
        for row in rows:
            task, rollout = row.get(TASK, 0), row.get(ROLLOUT)
            if type(task) is not int or not 0 <= task < 2**53:
                raise refused(f"{TASK} of a row is no whole number from 0 on")
            if type(rollout) is not int or not 0 <= rollout < 2**53:
                rollout = seen[task]
            table.add((_AGENT, task, rollout), row)
            seen[task] += 1
        metrics = agent_metrics(table, _AGENT)["agent_metrics"] if rows else {}
        tasks = list(task_metrics(table, _AGENT))
    finally:
        table.close()
    headlines = {name: value for name, value in metrics.items() if name == "mean/reward"}
    return {"group_level_metrics": tasks, "agent_metrics": metrics, "key_metrics": headlines}
