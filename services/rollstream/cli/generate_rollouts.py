"""`rollstream generate-rollouts`, also `generate-rollouts`: responses to the prompts of a file, without rewards."""

from pathlib import Path
from typing import Any

import click

from rollstream.cli.collecting import attempt_options
from rollstream.cli.options import FiniteRange, whole


@click.command("generate-rollouts", context_settings={"show_default": True})
@click.option("--model_path", required=True, help="Model directory, or name on the Hugging Face hub.")
@click.option(
    "--data_path",
    required=True,
    type=click.Path(path_type=Path),
    help="Prompts: parquet, JSONL, directory, or hf://OWNER/NAME.",
)
@click.option("--use_vllm", is_flag=True, help="Ask a server instead of loading the model into this process.")
@click.option(
    "--vllm_base_url", default="http://localhost:8000/v1", help="The server; several with commas share the requests."
)
@click.option("--vllm_model_name", help="Model name on the server.  [default: same as model_path]")
@click.option("--vllm_max_concurrent", type=whole(1), default=100, help="Most requests in flight at the servers.")
@click.option("--num_samples", type=whole(1), default=8, help="Responses for each prompt.")
@click.option("--temperature", type=FiniteRange(0), default=0.7, help="Sampling temperature.")
@click.option("--top_p", type=FiniteRange(0, 1, min_open=True), default=0.9, help="Nucleus bound.")
@click.option("--max_tokens", type=whole(1), default=512, help="Most tokens of a response.")
@click.option("--batch_size", type=whole(1), default=8, help="Prompts in process at a time; servers need no batches.")
@click.option("--prompt_key", default="prompt", help="Column with the prompt: text, or a list of messages.")
@click.option("--trust_remote_code", is_flag=True, help="Accepted; code beside the weights is never run here.")
@click.option("--output_path", type=click.Path(path_type=Path), help="File to write.  [default: ./rollouts.parquet]")
@click.option("--output_format", type=click.Choice(["parquet", "jsonl"]), help="Its format.  [default: parquet]")
@attempt_options
@click.option("--overwrite", is_flag=True, help="Begin anew: remove what an earlier call collected there.")
def command(**flags: Any) -> None:
    """Generate responses to the prompts of a file, and save them without rewards.

    Called again, the same command goes on where it ended, and asks for what failed. The variable LITELLM_API_KEY is
    sent to the server as the key.
    """
    from rollstream.cli.collecting import litellm_key, say, stop_on_signals
    from rollstream.offline.generate import GenerateOptions, generate_rollouts

    report = generate_rollouts(GenerateOptions(**flags, api_key=litellm_key()), stop_on_signals(), say)
    raise SystemExit(report.exit_code)
