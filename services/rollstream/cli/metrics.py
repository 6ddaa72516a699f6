"""`rollstream metrics`: every metric that the stages export to Prometheus."""

import click

from rollstream.cli.options import json_option


@click.command("metrics")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables of services/METRICS.md.")
@json_option
def command(as_markdown: bool, as_json: bool) -> None:
    """List every metric of every stage: name, type, labels, unit and meaning. Each stage serves its own at /metrics."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from rollstream.local.metric_list import all_metrics, markdown
    from rollstream.views.rendering import cell, json_text

    found = all_metrics()
    if as_json:
        click.echo(json_text([asdict(metric) for metric in found]))
    elif as_markdown:
        click.echo(markdown(found), nl=False)
    else:
        table = Table("metric", "type", "labels", "unit", "meaning")
        for one in found:
            table.add_row(*map(cell, (one.name, one.kind, ", ".join(one.labels), one.unit, one.meaning)))
        Console().print(table)
