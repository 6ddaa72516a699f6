"""A server of the Model Context Protocol with a counter: `python -m tests.harness.mcp_server [PORT | FAULT]`.

With a port it speaks HTTP, else over standard input and output. FAULT: what it writes instead of speaking well.
"""

import os
import subprocess
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

SERVER = MCPServer("counter", log_level="CRITICAL")
_state = {"total": 0}


@SERVER.tool()
def add(by: int) -> str:
    """Add to the number."""
    _state["total"] += by
    return str(_state["total"])


@SERVER.tool()
def fail() -> str:
    """Raise."""
    raise ToolError("the box is shut")


@SERVER.tool()
def exit_now() -> str:
    """End the process."""
    os._exit(3)


@SERVER.tool()
def hang() -> str:
    """Never answer, and start another process."""
    subprocess.Popen(["sleep", "1000"])
    time.sleep(1000)
    return ""


@SERVER.tool()
def give(num_bytes: int) -> str:
    """Give much."""
    return "x" * num_bytes


@SERVER.tool()
def pid() -> str:
    """The process."""
    return str(os.getpid())


def main() -> None:
    """Serve until the input ends, or for ever over HTTP."""
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    if given == "garbage":
        sys.stdout.write("Welcome!\n")
        sys.stdout.flush()
        time.sleep(1000)
    elif given == "huge":
        sys.stdout.write("x" * 100_000_000)
        sys.stdout.flush()
        time.sleep(1000)
    elif given == "silent":
        time.sleep(1000)
    elif given:
        SERVER.run("streamable-http", host="127.0.0.1", port=int(given))
    else:
        SERVER.run("stdio")


if __name__ == "__main__":
    main()
