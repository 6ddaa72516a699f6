"""What `ng_collect_rollouts` does: rows → `POST /run` of agents' servers → rollouts, through the offline collection.

The progress store beside the output keeps the whole answer of each rollout that ended, its turns included. So the same
command goes on after kill -9, and asks what is missing or failed, and nothing else.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rollstream.gym.agent_servers import GymServerAsker, Target
from rollstream.gym.aggregate import metrics_path, table_beside, write_metrics
from rollstream.gym.figures import advice, figures_of
from rollstream.gym.names import MATERIALIZED, beside
from rollstream.gym.options import DEFAULT, GymCollectOptions
from rollstream.gym.output import rollout_row
from rollstream.gym.packaged_files import packaged_or_own
from rollstream.gym.prompts import PromptTemplate
from rollstream.gym.rows import Expansion, GymTasks
from rollstream.offline.collection import CollectReport, collect
from rollstream.offline.settings import CollectSettings
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.rows.open import open_rows
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Sampling

_PARALLEL: Final = 64
TYPED: Final = {
    "--overwrite": "+resume_from_cache=false",
    "--max-attempts": "+max_attempts",
    "--retry-failed": "+retry_failed=true",
    "--fail-over": "+fail_over",
}


def collect_rollouts(options: GymCollectOptions, stop: Stop, say: Say) -> int:
    """Collect, and say what is worth knowing. Returns the exit code; raises what `collect` raises."""
    output = options.output_jsonl_fpath
    if output.suffix != ".jsonl":
        raise ConfigurationError(f"output_jsonl_fpath {output}: its name must end in .jsonl")
    if output.exists() and options.input_jsonl_fpath.exists() and output.samefile(options.input_jsonl_fpath):
        raise ConfigurationError(f"output_jsonl_fpath {output} is the input itself: name another one")
    template = None if options.prompt_config is None else PromptTemplate.read(options.prompt_config)
    settings, expansion = _settings(options, template), _expansion(options, template)
    tasks = GymTasks(open_rows(packaged_or_own(options.input_jsonl_fpath)), expansion, beside(output, MATERIALIZED))
    report = collect(settings, tasks, GymServerAsker(_target(options)), stop, rollout_row)
    for line in report.lines():
        say(line)
    if report.summary is not None or report.was_complete:
        _show(options, report, say)
    return report.exit_code


def _show(options: GymCollectOptions, report: CollectReport, say: Say) -> None:
    """Print the figures, and write the metrics unless they are not wanted."""
    output, parallel = options.output_jsonl_fpath, report.settings.concurrency
    table = table_beside(output)
    try:
        if not options.disable_aggregation:
            write_metrics(table, metrics_path(output))
            say(f"written: {metrics_path(output)}")
        figures = json.dumps(figures_of(table, report.counts), indent=4)
        for line in (*advice(table, report.counts, parallel), *figures.splitlines()):
            say(line)
    finally:
        table.close()


def _settings(options: GymCollectOptions, template: PromptTemplate | None) -> CollectSettings:
    output = options.output_jsonl_fpath
    return CollectSettings(
        output=output,
        kind="jsonl",
        sampling=Sampling(),
        described=_described(options, template),
        num_samples=1,
        concurrency=options.num_samples_in_parallel or _PARALLEL,
        max_attempts=options.max_attempts,
        retry_failed=options.retry_failed,
        fail_over=options.fail_over,
        overwrite=not options.resume_from_cache,
        beside=output.stem,
        typed_as=TYPED,
    )


def _target(options: GymCollectOptions) -> Target:
    return Target(
        head=options.head_server,
        url=options.agent_url,
        call_seconds=options.rollout_seconds,
        start_seconds=options.start_seconds,
    )


def _described(options: GymCollectOptions, template: PromptTemplate | None) -> Mapping[str, Any]:
    """What a resume must have in common with the beginning; where servers listen may change."""
    return {
        "agent_name": options.agent_name,
        "limit": options.limit,
        "num_repeats": options.num_repeats,
        "num_repeats_add_seed": options.num_repeats_add_seed,
        "responses_create_params": options.responses_create_params,
        "prompt_config": None if template is None else dict(template.texts),
        "success_threshold": options.success_threshold,
    }


def _expansion(options: GymCollectOptions, template: PromptTemplate | None) -> Expansion:
    repeats = options.num_repeats
    return Expansion(
        agent_name=options.agent_name,
        limit=options.limit,
        repeats=repeats if isinstance(repeats, Mapping) else {DEFAULT: repeats or 1},
        adds_seed=options.num_repeats_add_seed,
        params=options.responses_create_params,
        template=template,
    )
