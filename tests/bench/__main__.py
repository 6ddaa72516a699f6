"""`python -m tests.bench NAME`: measure one part, mostly against the same work without rollstream."""

import click

from rollstream.cli.main import LazyGroup

_BENCHES = {
    "loop": "The whole loop against TRL's GRPOTrainer, which runs in an environment of its own.",
    "generator": "The stage with Kafka against the same engine, which gets the same prompts directly.",
    "bus": "Our publisher and consumer against the Kafka client alone.",
    "scorer": "Rollouts per second of one scorer process.",
    "trainer": "Training steps that publish weights against a plain PyTorch loop.",
    "library": "The training library's loop against a plain PyTorch loop, and whether it learns the demo's task.",
    "trainer-wait": "Share of the time that the trainer waits although its input is ready.",
    "start": "Start of each stage after ten times the optimizer steps.",
    "long-tail": "What lag drops of answers whose lengths vary widely, and whether long ones are trained less.",
    "feedback": "Whether a policy learns from what callers say of its answers, and from nothing else.",
    "tool-learning": "Whether a policy learns a task that it can't do without calling a tool.",
    "cycles": "Whether a policy learns to reason in cycles, by trajectories and by states.",
    "serve": "Answers to clients that are recorded against answers that are not.",
    "serve-reserve": "Clients of an engine that trains against clients that have it for themselves.",
    "agents": "CPU of an agent's turn beyond the model call itself.",
    "rc-actor": "CPU and memory of the Reasoning Cache actor, against a server that answers at once.",
    "reload": "How long a weight update stops the tokens, under load.",
}


@click.group(
    cls=LazyGroup,
    sections={"Benches": _BENCHES},
    modules={name: f"tests.bench.{name.replace('-', '_')}" for name in _BENCHES},
)
def command() -> None:
    """Measure one part, mostly against the same work done without rollstream.

    Prints one JSON object with the figures and the settings. Absolute times differ from machine to machine;
    compare the ratios. Run nothing else on the machine meanwhile.
    """


if __name__ == "__main__":
    from rollstream.cli.main import run

    run(command, "python -m tests.bench")
