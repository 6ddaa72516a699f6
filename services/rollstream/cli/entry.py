"""What the console script calls: with Ctrl-C the process ends at once, without a traceback, until a command runs."""

import signal


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
