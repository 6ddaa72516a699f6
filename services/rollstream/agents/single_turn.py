"""The agent `single_turn`: one model call answers the prompt."""

from rollstream.agents.session import Session
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode


class SingleTurn:
    """The default agent; it has no options."""

    def __init__(self, **options: str) -> None:
        if options:
            raise FailedSampleError(FailureCode.BAD_AGENT_OPTIONS, f"single_turn has no options, got {sorted(options)}")

    async def run(self, session: Session) -> None:
        """One turn. Raises `FailedSampleError` for a prompt that the template does not take, or that leaves no room."""
        await session.generate()
