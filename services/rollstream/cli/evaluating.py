"""`rollstream evaluate --follow`: what it shows, serves and reports beside the file of its results."""

from contextlib import closing, nullcontext
from typing import Any

import click

from rollstream.bus.run import Run
from rollstream.client.evaluate import sampling_of
from rollstream.client.evaluation import EvaluationReport, EvaluationRequest
from rollstream.client.follow import Follower
from rollstream.client.options import EvaluateOptions
from rollstream.client.results import SETTINGS, results_at
from rollstream.client.wandb_log import WandbLog
from rollstream.process.entry import ask_on_signal
from rollstream.process.fleet import EVALUATING, Fleet, beating
from rollstream.process.health import Health
from rollstream.process.settings.address import revealed
from rollstream.process.settings.base import StageSettings
from rollstream.process.stop import Stop
from rollstream.schemas.topics import EVAL_PROMPTS, EVAL_SCORED, LEDGER
from rollstream.views.evaluation import counts_of, passes_of, reward_of


def follow(run: Run, request: EvaluationRequest, options: EvaluateOptions, settings: StageSettings) -> None:
    """Evaluate versions as they are published, until SIGTERM or Ctrl-C."""
    assert options.output is not None
    run.require_topics(LEDGER, EVAL_PROMPTS, EVAL_SCORED)
    stop, health = Stop(), Health()
    ask_on_signal(stop)
    reported = _Reported(Fleet(revealed(settings.redis_url), run.name), request.environment)
    with (
        results_at(options.output) as results,
        closing(WandbLog(options.wandb, run=run.name, output=options.output))
        if options.wandb
        else nullcontext() as wandb,
        beating(reported.beat),
    ):
        results.refuse_other(_settings_of(run, request))

        def told(report: EvaluationReport) -> None:
            reported.note(report)
            if wandb is not None:
                wandb.add(report)
            click.echo(f"version {report.weight_version}: {'; '.join(filter(None, _parts(report).values()))}")

        if options.health_port is not None:
            health.serve(settings.health_host, options.health_port)
        try:
            Follower(run=run, request=request, every=options.every, results=results, told=told, health=health).follow(
                stop
            )
        finally:
            health.close()


class _Reported:
    """What `rollstream status` shows of this process."""

    def __init__(self, fleet: Fleet, environment: str) -> None:
        self._fleet = fleet
        self._environment = environment
        self._newest: dict[str, Any] = {}

    def note(self, report: EvaluationReport) -> None:
        self._newest = {"version": report.weight_version, **_parts(report)}

    def beat(self) -> None:
        state = {"stage": EVALUATING, "environment": self._environment, **self._newest}
        self._fleet.beat(f"{EVALUATING} {self._environment}", state)


def _parts(report: EvaluationReport) -> dict[str, str]:
    return {"reward": reward_of(report), "passes": passes_of(report), "prompts": counts_of(report)}


def _settings_of(run: Run, request: EvaluationRequest) -> dict[str, Any]:
    temperature = sampling_of(request).temperature
    return {name: getattr(request, name, None) for name in SETTINGS} | {"run": run.name, "temperature": temperature}
