"""`rollstream bench`: each measures a part against its bare counterpart and prints one JSON object."""

import click

from rollstream.cli.main import LazyGroup

_BENCHES = {
    "generator": "The stage, Kafka in and out, against the same engine given the same prompts directly.",
    "bus": "Our publisher and consumer against the bare client.",
    "scorer": "Rollouts per second of one scorer process.",
    "trainer": "Training steps with publishing on against a bare PyTorch loop.",
    "trainer-wait": "Share of time that the trainer waits, its input filled beforehand.",
    "reload": "How long a weight update keeps tokens from coming, under load.",
}


@click.group(
    cls=LazyGroup,
    lazy=_BENCHES,
    modules={name: f"rollstream.local.bench.{name.replace('-', '_')}" for name in _BENCHES},
)
def command() -> None:
    """Measure a part against its bare counterpart; prints one JSON object with ratio, both sides and settings.

    Absolute times vary from machine to machine; ratios in one run hold. Let nothing else run meanwhile.
    """
