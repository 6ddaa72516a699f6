"""What `generate-rollouts` does: source document 001's script, flag by flag, on the collection of all commands."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from rollstream.agents.samples import SampleBounds
from rollstream.engines.build import build_engine
from rollstream.engines.settings import EngineSettings
from rollstream.offline.collection import CollectReport, collect
from rollstream.offline.engine_choice import described, in_process_engine, needs_own_code, server_engine
from rollstream.offline.manifest import begun_input
from rollstream.offline.paths import Places
from rollstream.offline.settings import (
    DEFAULT_FAIL_OVER,
    DEFAULT_MAX_ATTEMPTS,
    MAX_CONCURRENCY,
    CollectSettings,
)
from rollstream.offline.tasks import FileTasks
from rollstream.process.stop import Stop
from rollstream.rows.open import open_rows
from rollstream.rows.write import Kind
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Sampling

DEFAULT_OUTPUT: Final = "./rollouts.parquet"
_EXAMPLES: Final = {"data.parquet": "data.jsonl"}
"""Files that the document's commands name → what is used if the working directory has none."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """The flags, under the document's names. `output_format` None: not given."""

    model_path: str
    data_path: Path
    use_vllm: bool
    vllm_base_url: str
    vllm_model_name: str | None
    vllm_max_concurrent: int
    num_samples: int
    temperature: float
    top_p: float
    max_tokens: int
    batch_size: int
    prompt_key: str
    trust_remote_code: bool
    output_path: Path | None
    output_format: Kind | None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_failed: bool = False
    fail_over: float = DEFAULT_FAIL_OVER
    overwrite: bool = False
    api_key: SecretStr | None = None


def generate_rollouts(options: GenerateOptions, stop: Stop, say: Say) -> CollectReport:
    """Generate, and say what is worth knowing; raises `ConfigurationError` for flags that do not fit."""
    data = resolved(options.data_path, say)
    output, kind = output_of(options, say)
    refuse_same(data, output)
    begun_with = "" if options.overwrite else begun_input(Places(output).manifest)
    tasks = FileTasks(open_rows(data, begun_with), prompt_key=options.prompt_key)
    engine = _engine(options, say)
    settings = CollectSettings(
        output=output,
        kind=kind,
        num_samples=options.num_samples,
        sampling=Sampling(temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_tokens),
        concurrency=concurrency_of(options),
        described={**described(engine), "prompt_key": options.prompt_key},
        # An HTTP engine repeats a call itself, and knows better when.
        bounds=SampleBounds(deadline_seconds=3600.0, max_tries=1 if options.use_vllm else 2),
        max_attempts=options.max_attempts,
        retry_failed=options.retry_failed,
        fail_over=options.fail_over,
        overwrite=options.overwrite,
    )
    report = collect(settings, tasks, build_engine(engine), stop)
    for line in report.lines(settings):
        say(line)
    return report


def concurrency_of(options: GenerateOptions) -> int:
    """Samples in flight: of a server as many as allowed, whatever the batch; in process all of a batch."""
    if options.use_vllm:
        return options.vllm_max_concurrent
    return min(options.batch_size * options.num_samples, MAX_CONCURRENCY)


def resolved(path: Path, say: Say) -> Path:
    """`path`; or the packaged example, if it is a file of the document's commands that the directory has not."""
    example = _EXAMPLES.get(str(path))
    if path.exists() or example is None:
        return path
    packaged = Path(__file__).parent / "examples" / example
    say(f"{path} does not exist here: taking the packaged example {packaged}, a few prompts of ours")
    return packaged


def output_of(options: GenerateOptions, say: Say) -> tuple[Path, Kind]:
    """Where to write, and what; raises `ConfigurationError` if name and format contradict each other."""
    given, kind = options.output_path, options.output_format
    if given is None:
        path = Path(DEFAULT_OUTPUT).with_suffix(f".{kind or 'parquet'}")
        return path, kind or "parquet"
    by_name: Kind | None = {".jsonl": "jsonl", ".parquet": "parquet"}.get(given.suffix)  # type: ignore[assignment]
    if kind is None and by_name == "jsonl":
        say(f"{given} is written as jsonl, as its name says; --output_format parquet is the default for other names")
    if kind is not None and by_name is not None and kind != by_name:
        raise ConfigurationError(
            f"--output_path {given} is the name of a {by_name} file, --output_format is {kind}: change one of them"
        )
    return given, kind or by_name or "parquet"


def refuse_same(data: Path, output: Path) -> None:
    """Raise `ConfigurationError` if the output would replace the input."""
    if output.exists() and data.exists() and output.samefile(data):
        raise ConfigurationError(f"output {output} is the input itself: name another output")


def _engine(options: GenerateOptions, say: Say) -> EngineSettings:
    if options.use_vllm:
        if options.trust_remote_code:
            say("--trust_remote_code has no effect here: the server loads the model; start it with --trust-remote-code")
        urls = [url.strip() for url in options.vllm_base_url.split(",") if url.strip()]
        model = options.vllm_model_name or options.model_path
        return server_engine(urls, model, max_connections=options.vllm_max_concurrent, api_key=options.api_key)
    engine = in_process_engine(options.model_path, max_num_seqs=concurrency_of(options))
    if needs_own_code(engine.model_path):
        raise ConfigurationError(
            f"{engine.model_path} needs Python files of its own, which are never run here, with --trust_remote_code "
            "neither: start a vLLM server with --trust-remote-code, and use --use_vllm"
        )
    if options.trust_remote_code:
        say("--trust_remote_code has no effect: code beside the weights is never run, and this model needs none")
    return engine
