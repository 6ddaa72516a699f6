"""Names data sets so that two different ones never have the same name: prompt ids, and so group ids, begin with it.

A file's name is not enough: `math/train.jsonl` and `code/train.jsonl` would give the same groups. Its path is not
either: on two machines it may be two files, and a file that moves stays the same. So the content counts.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rollstream.environments.protocol import Task
from rollstream.process.files import sha256_of
from rollstream.rows.row import shown_identity

_DIGITS: Final = 12
INGESTED: Final = "topic ingest-prompts/"
"""Before the id of the topic, in the data set of prompts that clients gave. No file and no environment is called so."""


def file_identity(path: Path) -> str:
    """The file's name and the start of its SHA-256; raises `OSError`."""
    return shown_identity(path, sha256_of(path))


def tasks_identity(name: str, tasks: Iterable[Task]) -> str:
    """`name` and the start of a SHA-256 of what the tasks ask."""
    digest = hashlib.sha256()
    for task in tasks:
        asked = (task.task_id, *(message.hashed_json() for message in task.messages), task.reference_answer or "")
        for text in asked:
            # With its length: else a text that moves from one field to the next would change nothing.
            digest.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
    return f"{name}@{digest.hexdigest()[:_DIGITS]}"
