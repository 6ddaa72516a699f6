"""`rollstream probe`: ask a stage on this machine whether it lives or is ready. For health checks of containers."""

import os

import click

_DEADLINE_SECONDS = 5.0


@click.command("probe")
@click.argument("what", type=click.Choice(["livez", "readyz"]))
@click.option("--host", envvar="ROLLSTREAM_HEALTH_HOST", help="Where the stage serves.  [default: 127.0.0.1]")
@click.option(
    "--port", required=True, type=click.IntRange(1, 65535), envvar="ROLLSTREAM_HEALTH_PORT", help="Its health_port."
)
def command(what: str, host: str | None, port: int) -> None:
    """Print what the stage says, and exit with 0 if it is fine, else with 1.

    Without the options the stage's own ROLLSTREAM_HEALTH_HOST and ROLLSTREAM_HEALTH_PORT apply.
    """
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(_reachable(host), port, timeout=_DEADLINE_SECONDS)
    try:
        connection.request("GET", f"/{what}")
        answer = connection.getresponse()
        click.echo(answer.read().decode(errors="replace"), nl=False)
    except (OSError, HTTPException) as error:
        why = str(error) or type(error).__name__
        raise click.ClickException(f"no stage answers at {_reachable(host)}:{port}: {why}") from error
    finally:
        connection.close()
    raise SystemExit(os.EX_OK if answer.status == 200 else 1)


def _reachable(host: str | None) -> str:
    """The address to ask: a stage that serves at every address is asked on the loopback interface."""
    return {None: "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host or "127.0.0.1")
