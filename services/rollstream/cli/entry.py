"""What the console scripts call: with Ctrl-C the process ends at once, without a traceback, until a command runs."""

import signal
import sys
from pathlib import Path


def main() -> None:
    """Import the command line and run it."""
    # A shell may have started this process with Ctrl-C ignored: that stays so.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rollstream.cli.main import main as run

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def run_command_of_this_name() -> None:
    """`generate-rollouts …` is `rollstream generate-rollouts …`, and so is each other script of a command's name."""
    sys.argv[1:1] = [Path(sys.argv[0]).name]
    main()


def run_gym_command() -> None:
    """`ng_collect_rollouts …` is `rollstream gym collect-rollouts …`, and so is each other script of NeMo Gym."""
    sys.argv[1:1] = ["gym", Path(sys.argv[0]).name.removeprefix("ng_").replace("_", "-")]
    main()
