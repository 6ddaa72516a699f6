"""An environment of a single task, which a tiny model learns within seconds."""

from collections.abc import Iterator

from rollstream.environments.protocol import Split, Task
from rollstream.environments.sort_digits import SortDigits
from rollstream.schemas.prompt import Message


class OneTask(SortDigits):
    """Sort three digits, always the same ones."""

    name = "one_task"

    def tasks(self, split: Split, seed: int) -> Iterator[Task]:
        while True:
            message = Message(role="user", content="210=")
            yield Task(task_id="one", messages=(message,), reference_answer="012", demonstration="012")
