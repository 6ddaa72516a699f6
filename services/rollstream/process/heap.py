"""What a process has loaded once it is up stays: the garbage collector need not walk through it for weeks."""

import gc
from typing import Final

_NEW_OBJECTS: Final = 10_000


def spare_the_loaded() -> None:
    """Take everything that lives now out of the collector's sight, and let it look less often.

    Measured: with vLLM, torch and transformers imported, full collections took 40 % of a generator's event loop.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
