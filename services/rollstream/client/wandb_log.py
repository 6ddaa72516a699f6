"""Logs evaluations to Weights & Biases; the only module that imports its library, which is an extra."""

import hashlib
from pathlib import Path

from rollstream.client.evaluation import EvaluationReport
from rollstream.client.metrics import exported_ks
from rollstream.schemas.errors import ConfigurationError


class WandbLog:
    """One run there, in which a step is a weight version."""

    def __init__(self, project: str, *, run: str, output: Path) -> None:
        """Its id is made of `run` and `output`: a process that goes on with this file adds to the same one.

        Other results of the run, such as those of another environment, have one of their own. Local files lie beside
        `output`.

        Raises `ConfigurationError` if the library is missing or can't begin, e.g. without a key.
        """
        try:
            import wandb
        except ImportError as error:
            raise ConfigurationError(
                "--wandb needs the library of Weights & Biases: install rollstream[wandb], or leave it out"
            ) from error
        name = f"{run}-evaluate-{hashlib.sha256(bytes(output.resolve())).hexdigest()[:8]}"
        try:
            self._run = wandb.init(
                project=project, id=name, resume="allow", dir=output.parent, settings={"silent": True}
            )
        except (wandb.Error, OSError) as error:
            raise ConfigurationError(
                f"--wandb {project}: {error}; log in with `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def add(self, report: EvaluationReport) -> None:
        """Log an evaluation. The library sends it in the background, and goes on without a network."""
        counts = {"completed": report.num_completed, "failed": report.num_failed, "unresolved": report.num_unresolved}
        values: dict[str, float] = {f"evaluation/{name}_prompts": count for name, count in counts.items()}
        if report.mean_reward is not None:
            values["evaluation/reward"] = report.mean_reward
            passes = {k: report.pass_at_k[k] for k in exported_ks(report.num_samples)}
            values |= {f"evaluation/pass_at_{k}": estimate for k, estimate in passes.items()}
        if report.reward_interval is not None:
            values["evaluation/reward_low"], values["evaluation/reward_high"] = report.reward_interval
        self._run.log(values, step=report.weight_version)

    def close(self) -> None:
        """Send what waits."""
        self._run.finish()
