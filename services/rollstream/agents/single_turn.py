"""The agent `single_turn`: one model call, no tools."""

from rollstream.agents.problem_state import THINK
from rollstream.agents.session import Session
from rollstream.agents.tools import truth_from
from rollstream.agents.turns import Form
from rollstream.schemas.errors import FailedSampleError
from rollstream.schemas.failure import FailureCode


class SingleTurn:
    """Options: `use_think_tags`, the answer begins with an opened tag; `is_text`, the one message has no template.

    With both it answers a state of `reasoning_cache` as its cycle would have.
    """

    def __init__(self, use_think_tags: str = "false", is_text: str = "false") -> None:
        has_tag = truth_from("use_think_tags", use_think_tags)
        self._form = Form(opening=THINK if has_tag else "", is_text=truth_from("is_text", is_text))

    async def run(self, session: Session) -> None:
        """Ask the model once."""
        messages = session.prompt.messages
        if self._form.is_text and len(messages) != 1:
            raise FailedSampleError(
                FailureCode.BAD_PROMPT, f"is_text takes one message as plain text, got {len(messages)}"
            )
        await session.generate(form=self._form)
