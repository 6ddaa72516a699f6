"""What `rollstream evaluate` shows: a progress bar while it runs, then a table or JSON; and a line for `status`."""

from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rollstream.bus.run import Run
from rollstream.client.evaluate import evaluate
from rollstream.client.evaluation import EvaluatedPrompt, EvaluationReport, EvaluationRequest
from rollstream.client.metrics import exported_ks
from rollstream.rows.conversation import REFERENCE
from rollstream.views.rendering import cell, json_text

_NUM_EXAMPLES = 5


def evaluate_with_progress(run: Run, request: EvaluationRequest, *, is_shown: bool) -> EvaluationReport:
    """Evaluate, with a progress bar on standard error if `is_shown`."""
    with Progress(console=Console(stderr=True), disable=not is_shown, transient=True) as progress:
        task = progress.add_task(f"version {request.weight_version}", total=request.num_prompts * request.num_samples)
        return evaluate(run, request, lambda answered: progress.update(task, completed=answered))


def show(report: EvaluationReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(json_text(_plain(report)))
        return
    title = cell(f"{report.environment}, version {report.weight_version}: mean reward {reward_of(report)}")
    table = Table("prompt", "answer", "reference", "reward", title=title)
    for prompt in report.prompts[:_NUM_EXAMPLES]:
        table.add_row(*(cell(_shortened(part)) for part in _row(prompt)))
    console = Console()
    console.print(table)
    if report.num_samples > 1 and report.pass_at_k:
        console.print(passes_of(report), highlight=False)
    console.print(counts_of(report), highlight=False)
    for line in (f"{failure.count} x {failure.code.value}: {failure.example}" for failure in report.failures):
        console.print(cell(line, "red"))


def reward_of(report: EvaluationReport) -> str:
    """The mean reward with its 95 % interval."""
    if report.mean_reward is None:
        return "none scored"
    interval = report.reward_interval
    return f"{report.mean_reward:.3f}" + (f" (95 %: {interval[0]:.3f} to {interval[1]:.3f})" if interval else "")


def passes_of(report: EvaluationReport) -> str:
    """pass@k of the exported k; empty if nothing was scored."""
    passes = ((k, report.pass_at_k.get(k)) for k in exported_ks(report.num_samples))
    return ", ".join(f"pass@{k} {estimate:.3f}" for k, estimate in passes if estimate is not None)


def counts_of(report: EvaluationReport) -> str:
    """How the prompts ended."""
    return f"{report.num_completed} completed, {report.num_failed} failed, {report.num_unresolved} unresolved"


def _row(prompt: EvaluatedPrompt) -> tuple[str, str, str, str]:
    asked = prompt.prompt.messages[-1].content
    reward = prompt.status.value if prompt.reward is None else f"{prompt.reward:.3f}"
    return asked, prompt.answer, prompt.prompt.reference_answer or "", reward


def _shortened(text: str) -> str:
    line = text.replace("\n", "⏎")
    return line if len(line) <= 60 else f"{line[:60]}…"


def _plain(report: EvaluationReport) -> dict[str, Any]:
    names = ("prompt", "answer", REFERENCE, "reward")
    rows = [dict(zip(names, _row(prompt), strict=True)) for prompt in report.prompts[:_NUM_EXAMPLES]]
    return {**report.as_plain(), "examples": rows}
