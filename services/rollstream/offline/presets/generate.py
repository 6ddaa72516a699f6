"""`generate-rollouts`: a preset of `collect` that takes a file of prompts and gives no rewards.

Its options, their defaults and its columns are those of a script that people know: its command lines work here.
"""

from pathlib import Path
from typing import Final

from rollstream.offline.collection import CollectReport
from rollstream.offline.engine_choice import litellm_variable, named_engine
from rollstream.offline.job import Job
from rollstream.offline.options import MAX_CONCURRENCY, AskingOptions, CollectOptions, GenerateOptions
from rollstream.offline.output import rollout_columns
from rollstream.process.stop import Stop
from rollstream.process.terminal import Say
from rollstream.rows.hub import is_hub_name
from rollstream.rows.write import Kind
from rollstream.schemas.errors import ConfigurationError

_DEADLINE_SECONDS: Final = 3600.0
_CALL_SECONDS: Final = 300.0
_EXAMPLES: Final = {"data.parquet": "data.jsonl"}
"""Files of well-known command lines → what is taken where the working directory has none."""
_SAME: Final = {*AskingOptions.model_fields, "num_samples", "temperature", "top_p", "max_tokens", "prompt_key"}
"""Options that `collect` has too."""


def generate_rollouts(options: GenerateOptions, stop: Stop, say: Say) -> CollectReport:
    """Generate, and say what is worth knowing; raises `ConfigurationError` for options that do not fit."""
    output, kind = _output(options)
    chosen = _collecting(options, output, say)
    engine = named_engine(chosen, request_seconds=_CALL_SECONDS)
    if options.trust_remote_code:
        say("--trust_remote_code has no effect: code beside the weights is never run here; a server decides by itself")
    return Job(options=chosen, engine=engine, to_columns=rollout_columns, kind=kind).run(stop, say)


def _collecting(options: GenerateOptions, output: Path, say: Say) -> CollectOptions:
    """The options as those of `collect`."""
    urls = [url.strip() for url in options.vllm_base_url.split(",") if url.strip()] or [options.vllm_base_url]
    in_process = min(options.batch_size * options.num_samples, MAX_CONCURRENCY)
    return CollectOptions(
        source=str(_resolved(options.data_path, say)),
        output=output,
        url=tuple(urls) if options.use_vllm else (),
        model=(options.use_vllm and options.vllm_model_name) or options.model_path,
        api_key_variable=litellm_variable(),
        concurrency=options.vllm_max_concurrent if options.use_vllm else in_process,
        deadline=_DEADLINE_SECONDS,
        **options.model_dump(include=_SAME),
    )


def _output(options: GenerateOptions) -> tuple[Path, Kind]:
    """Where to write, and what; raises `ConfigurationError` if name and format contradict each other."""
    given, kind = options.output_path, options.output_format
    if given is None:
        return Path(f"./rollouts.{kind or 'parquet'}"), kind or "parquet"
    by_name: Kind | None = {".jsonl": "jsonl", ".parquet": "parquet"}.get(given.suffix)  # type: ignore[assignment]
    if kind is not None and by_name is not None and kind != by_name:
        raise ConfigurationError(
            f"--output_path {given} is the name of a {by_name} file, --output_format is {kind}: change one of them"
        )
    return given, kind or by_name or "parquet"


def _resolved(path: Path, say: Say) -> Path:
    """`path`; or the packaged example, if it is a file of a well-known command line that the directory has not."""
    example = _EXAMPLES.get(str(path))
    if path.exists() or is_hub_name(path):
        return path
    if example is None:
        raise ConfigurationError(f"cannot read {path}: there is no such file; name another one with --data_path")
    packaged = Path(__file__).parents[1] / "examples" / example
    say(f"{path} does not exist here: taking the packaged example {packaged}, a few prompts of ours")
    return packaged
