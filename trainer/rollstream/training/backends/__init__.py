"""What holds a model and trains it. The names are the library's, imported when they are first used."""

from typing import Any

import rollstream.training as library


def __getattr__(name: str) -> Any:
    return getattr(library, name)
