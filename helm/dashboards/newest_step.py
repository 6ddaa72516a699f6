"""What two dashboards show of the newest step and its trainer."""

from typing import Final

from helm.dashboards.parts import RUN, Panel, number

PHASES: Final = {
    "assembling": "decode and admit",
    "packing": "pack",
    "forward_backward": "forward and backward",
    "optimizer": "optimizer",
    "publishing": "publish the step before",
}
"""What a trainer does in a step, and what it is called."""


def times_since_step(*, width: int) -> list[Panel]:
    """How long ago the run made a step, and saved its steps."""
    return [
        number(
            "Since the newest step",
            "Time since it was committed. Before the first one, since the trainer started.",
            "s",
            f"time() - max(rollstream:last_step_timestamp_seconds{{{RUN}}})",
            bad_from=3600,
            width=width,
        ),
        number(
            "Steps that are not saved",
            "Time since the first step that is in no checkpoint: a trainer that dies does them again. 0: all is saved.",
            "s",
            f"time() - max(rollstream:unsaved_since_timestamp_seconds{{{RUN}}})"
            f" or 0 * max(rollstream:last_step_timestamp_seconds{{{RUN}}})",
            bad_from=14400,
            width=width,
        ),
    ]
