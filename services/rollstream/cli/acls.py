"""`rollstream acls`: what each stage's principal may do on the cluster."""

from dataclasses import asdict

import click

from rollstream.bus.acl_rules import ROLES, acl_rules
from rollstream.cli.options import json_option, settings_option
from rollstream.process.settings.base import StageSettings
from rollstream.views.rendering import json_text


def _principals(given: tuple[str, ...]) -> dict[str, str]:
    """`ROLE=User:name`, one for each role; without any, the stages as `User:rollstream-<stage>`."""
    found: dict[str, str] = {}
    for text in given:
        role, separator, principal = text.partition("=")
        if role not in ROLES or not separator or not principal.partition(":")[2]:
            raise click.BadParameter(
                f"{text!r}: write ROLE=User:name; roles are {', '.join(ROLES)}", param_hint="--principal"
            )
        found[role] = principal
    return found or {role: f"User:rollstream-{role}" for role in ROLES}


principal_option = click.option(
    "--principal",
    "principals",
    multiple=True,
    metavar="ROLE=User:NAME",
    help="Who does the work of a role; repeat it. Default: every role, as User:rollstream-ROLE.",
)


@click.group()
def command() -> None:
    """Print, apply or check what each stage may do on a cluster with an authorizer (Kafka's ACLs).

    A role may do its stage's work and nothing else. Roles are the four stages; client, for `prompt` and `evaluate`;
    viewer, who reads everything; operator, who may do everything to the run. Whoever may write `prompts` influences
    training.
    """


@command.command("print")
@principal_option
@json_option
@settings_option
def print_rules(principals: tuple[str, ...], as_json: bool, settings: StageSettings) -> None:
    """Print the permissions, without asking the cluster."""
    rules = acl_rules(settings.run, _principals(principals))
    if as_json:
        click.echo(json_text([asdict(rule) for rule in rules]))
    for rule in () if as_json else rules:
        click.echo(str(rule))


@command.command()
@principal_option
@settings_option
def apply(principals: tuple[str, ...], settings: StageSettings) -> None:
    """Add the permissions that are missing. None is taken away: `check` shows those that are too many."""
    from rollstream.bus.acls import acls_of, apply_acls

    there, _ = acls_of(settings.kafka, settings.run)
    missing = [rule for rule in acl_rules(settings.run, _principals(principals)) if rule not in there]
    if not missing:
        click.echo("every permission is there already")
        return
    apply_acls(settings.kafka, settings.run, missing)
    for rule in missing:
        click.echo(f"added {rule}")


@command.command()
@principal_option
@json_option
@settings_option
def check(principals: tuple[str, ...], as_json: bool, settings: StageSettings) -> None:
    """Compare the cluster's permissions with what they should be. Exits with 1 if some are missing or too many."""
    from rollstream.bus.acls import acls_of

    wanted = set(acl_rules(settings.run, _principals(principals)))
    there, others = acls_of(settings.kafka, settings.run)
    found = {
        "missing": [str(rule) for rule in sorted(wanted - there)],
        "too many": [str(rule) for rule in sorted(there - wanted)],
        "not of ours": others,
    }
    if as_json:
        click.echo(json_text(found))
    for verdict, lines in () if as_json else found.items():
        for line in lines:
            click.echo(f"{verdict}: {line}")
    if any(found.values()):
        raise SystemExit(1)
    if not as_json:
        click.echo(f"{len(wanted)} permissions, as they should be")
