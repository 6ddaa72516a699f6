"""Three classes of what goes wrong, by table: of one step, of one group, of the world.

step   a call that was broken off, refused with 429 or 5xx, or answered with what can't be read. The engine repeats it,
       `max_retries` times, after `retry_base_delay`, doubling; Retry-After is obeyed.
group  a sample that is unresolved all the same: its group waits behind the others, up to ten times. Then it has failed,
       with the class of the error. A sample that can't be posed, since it is too long or refused: it fails at once.
world  no server is ready, a key is refused, the disk is full: the actor ends, says which, and goes on later.
"""

from collections.abc import Iterable
from typing import Final

from rollstream.schemas.failure import Failure, FailureCode
from rollstream.schemas.rollout import RolloutGenerated, Status

MAX_REQUEUED: Final = 10
_NOT_REACHED: Final = Failure(code=FailureCode.ENGINE, message="no server could be reached with it, the others could")


def failing(rollouts: Iterable[RolloutGenerated], num_requeued: int) -> Failure | None:
    """Why a group that lacks samples has failed; None: it may be asked again. `rollouts`: its newest attempts."""
    incomplete = [rollout for rollout in rollouts if rollout.status is not Status.COMPLETED]
    refused = next((one for one in incomplete if one.status is Status.FAILED), None)
    if refused is None and num_requeued < MAX_REQUEUED:
        return None
    named = refused or next(iter(incomplete), None)
    return _NOT_REACHED if named is None or named.failure is None else named.failure
