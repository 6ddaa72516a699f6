"""`rollstream word-count-rollouts`: the script of source document 000, through any server. Also a console script."""

from pathlib import Path

import click

from rollstream.cli.collecting import attempt_options
from rollstream.cli.options import FiniteRange, whole


@click.command("word-count-rollouts")
@click.option(
    "--num-examples", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Rollouts to generate."
)
@click.option("--model", default="claude-sonnet", show_default=True, help="Name that the server knows the model by.")
@click.option(
    "--base-url",
    default="http://localhost:8000",
    show_default=True,
    envvar="API_BASE_URL",
    show_envvar=True,
    help="Server, with or without /v1.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Directory of `datasets`, with the same rows as .jsonl beside it; or a .jsonl or .parquet file.  "
    "[default: rollouts; with --mock rollouts_mock]",
)
@click.option("--mock", "is_mock", is_flag=True, help="Take scripted answers; no server is asked.")
@click.option("--concurrency", type=whole(1), default=2, show_default=True, help="Most requests in flight.")
@click.option("--temperature", type=FiniteRange(0, 100), default=1.0, show_default=True, help="0 is greedy.")
@click.option("--max-tokens", type=whole(1), default=256, show_default=True, help="Most tokens of an answer.")
@click.option("--environment", default="", help="package.module.Class of an environment of your own.")
@click.option("--user-id", default="rollstream", show_default=True, help="Who asks, for the column `metadata`.")
@attempt_options
@click.option("--overwrite", is_flag=True, help="Remove what was collected before, and begin anew.")
def command(  # one parameter an option
    num_examples: int,
    model: str,
    base_url: str,
    output: Path | None,
    is_mock: bool,
    temperature: float,
    max_tokens: int,
    **others: float | str | bool,
) -> None:
    """Ask a model to count words, score its answers, write them as rollouts, and print their statistics.

    What was not answered is asked again by the same command. The variable LITELLM_API_KEY is sent as the key.
    """
    from rollstream.cli.collecting import litellm_key, say, stop_on_signals
    from rollstream.offline.word_count.request import WordCountRequest
    from rollstream.offline.word_count.run import collect_word_count
    from rollstream.schemas.prompt import Sampling

    request = WordCountRequest(
        num_examples=num_examples,
        model=model,
        base_url=base_url,
        output=output or Path("rollouts_mock" if is_mock else "rollouts"),
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
        is_mock=is_mock,
        api_key=litellm_key(),
        **others,  # type: ignore[arg-type]  # click gives them their types
    )
    raise SystemExit(collect_word_count(request, stop_on_signals(), say))
