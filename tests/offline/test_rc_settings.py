"""Keys of the Reasoning Cache actor: those of the document are read, all else is refused by name."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from rollstream.agents.load import Agents
from rollstream.process.settings.keys import Key
from rollstream.rc_actor.config_files import packaged_names
from rollstream.rc_actor.reading import read_settings
from rollstream.rc_actor.refused import NEUTRAL, REFUSED
from rollstream.rc_actor.settings import RCSettings
from rollstream.schemas.errors import ConfigurationError
from tests.harness.rc_keys import DATASETS, README, used_keys, written

OUTPUT: Final = "output_dir=out"
DOCUMENT: Final = """
output_dir: ./runs/mine
model_path: Qwen/Qwen3-4B-Instruct-2507
dataset_loader: pipelinerl.domains.math.load_datasets
train_dataset_names: [pope_hard_no_guide_test]
test_dataset_names: [{hub_id: lighteval/MATH, split: train}]
actor:
  num_reasoning_steps: 3
  num_samples_per_problem: 1
  use_think_tags: false
  reasoning_prompt_template: "{problem} after {curr_summary}"
  summarization_prompt_template: "{problem} {existing_summary} {reasoning}"
  solution_rollout_policy: pipelinerl.domains.math.rollouts.generate_math_rollout
  summarization_rollout_policy: pipelinerl.domains.math.rollouts.generate_math_rollout
  rollout_workers: 1
  llm_max_rollouts: 16
  problem_queue_size: 10
  result_queue_size: 10
  shared_memory_entry_size: 5242880
  throughput_window_size: 10
  max_retries: 3
  retry_base_delay: 1.0
llm: {parameters: {temperature: 1.0, max_tokens: 16384, top_p: 0.95}}
test_llm: {parameters: {temperature: 1.0, max_tokens: 16384, top_p: 1.0}}
seed: 42
streams: {backend: files}
wandb: {use_wandb: false}
attempts: 1
eval_every_n_versions: 0
debug: {mode: true}
"""
# What the original's two files have beside the document's keys, the groups' own keys left out.
ORIGINAL: Final = """
finetune.seed finetune.attempts finetune.train_batch_size finetune.valid_batch_size
finetune.gradient_accumulation_passes finetune.seq_length finetune.seq_parallel finetune.learning_rate
finetune.save_checkpoint_steps finetune.push_to_hub finetune.hub_model_id finetune.hub_model_revision
finetune.hub_ignore_patterns finetune.max_lag eval_only actor.log_each_n_secs actor.summarization_max_rollouts
actor.discount_factor actor.attempts actor.system_prompt actor.reasoning_prompt_file actor.summarization_prompt_file
actor.task_template actor.model_class actor.reasoning_prompt_style actor.summarization_style actor.use_rc_stream
actor.rc_stream_topic actor.rc_stream_samples_per_batch actor.rollout_policy preprocess.input preprocess.output
preprocess.n_workers preprocess.chunk_n_groups preprocess.raw_queue_size preprocess.input_queue_size
preprocess.output_queue_size preprocess.dataset_buffer_size preprocess.ring_buffer_size
preprocess.max_ready_samples_per_lead preprocess.pop_old_data preprocess.shared_memory_entry_size
preprocess.log_every_n_samples actor_llm llm.parameters.top_k summarization_llm.parameters.top_k actor_vllm_config
rc_actor_vllm_config summarization_vllm_config vllm_config.use_v1 vllm_config.vllm_kwargs world.replicas
world.rc_actor_fraction world.actor_fraction world.summarization_fraction world.preprocessor_fraction
world.finetune_fraction world.env_replicas world.actor_group_port world.environment_start_port
test_world.actor_fraction test_world.env_replicas test_world.environment_start_port test_world.actor_group_port jobs
summarization_model_path accelerate_config use_deepspeed deepspeed_config use_fsdp fsdp force_restart pop_old_data
max_lag train_subset.begin debug.streams_from debug.place_inference_workers debug.use_existing_llms me.job_idx
me.llm_urls hydra wandb.wandb_id wandb.wandb_name wandb.wandb_entity_name wandb.wandb_project_name wandb.wandb_resume
wandb.wandb_use_basename wandb.wandb_workspace_root wandb.wandb_group wandb.wandb_dir wandb.tags environment._target_
environment.model_name environment.sampling_kwargs environment.prompt_name llm_grader.local llm_grader.name
llm_grader.sampling_kwargs llm_grader.reasoning_delimiters llm_grader.prompt_name llm_grader.vllm_kwargs
"""
KEYS: Final = {place: key for place, key in used_keys().items() if not place.startswith(f"{DATASETS[0]}.")}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a short file, which is read sooner than the packaged ones."""
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    Path("conf/short.yaml").write_text("output_dir: ???\n")


def refusal(*words: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_settings("short", [OUTPUT, *words])
    return str(refused.value)


def wrong_values(key: Key) -> Iterator[tuple[Any, str]]:
    """Values that the key can't have, and what the error must say of the bound."""
    schema = key.schema
    for bound, step in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0)):
        if bound in schema:
            yield schema[bound] + step, f"{schema[bound]:.12g}"
    match schema:
        case {"enum": values}:
            yield "no_such", str(values[0])
        case {"const": value}:
            yield "no_such", str(value)
        case {"type": "integer" | "number"}:
            yield "many", "must be a valid"
        case {"type": "boolean"}:
            yield "perhaps", "must be a valid boolean"
        case {"type": "string"}:
            yield 5, ""
        case _:
            yield 5, ""


def word(place: str, value: Any) -> str:
    return f"++{place}={json.dumps(value)}"


def test_the_documents_file_is_read_and_its_command_lines_change_it() -> None:
    Path("conf/mine.yaml").write_text(DOCUMENT)
    settings = read_settings("mine", [])
    assert (settings.output_dir, settings.llm.parameters.top_p, settings.streams.backend) == (
        Path("runs/mine"),
        0.95,
        "files",
    )
    assert [one.name or one.hub_id for one in (*settings.train_dataset_names, *settings.test_dataset_names)] == [
        "pope_hard_no_guide_test",
        "lighteval/MATH",
    ]
    changed = read_settings(
        "mine", ["output_dir=/tmp/x", "actor.num_reasoning_steps=5", "me.llm_urls=http://localhost:8000/v1"]
    )
    assert (str(changed.output_dir), changed.actor.num_reasoning_steps) == ("/tmp/x", 5)
    assert "pipelinerl" not in sys.modules


@pytest.mark.parametrize("name", packaged_names())
def test_a_packaged_file_needs_only_where_to_write(name: str) -> None:
    settings = read_settings(name, [OUTPUT])
    assert Agents().make(settings.agent()) is not None
    assert settings.agent().options["num_reasoning_steps"] == "3"
    with pytest.raises(ConfigurationError, match="output_dir is missing"):
        read_settings(name, [])


def test_every_key_of_the_original_is_read_or_refused_with_a_reason() -> None:
    missing = [place for place in ORIGINAL.split() if place not in REFUSED and place not in KEYS]
    assert missing == []


def test_the_readme_has_a_line_for_each_key() -> None:
    text = README.read_text()
    assert written(text) == text, "write it: python -m tests.harness.rc_keys"


@pytest.mark.parametrize("place", KEYS)
def test_a_value_that_a_key_can_not_have_is_refused_with_key_value_and_bound(place: str) -> None:
    for value, bound in wrong_values(KEYS[place]):
        said = refusal(word(place, value))
        assert place in said
        assert bound in said
        assert KEYS[place].is_open or KEYS[place].type.startswith("list") or str(value) in said


@pytest.mark.parametrize("place", [*KEYS, *(place for place in REFUSED if "." not in place)])
def test_a_misspelled_key_is_told_its_nearest(place: str) -> None:
    above, _, name = place.rpartition(".")
    misspelled = f"{above}.{name}x" if above else f"{name}x"
    assert f"{misspelled}: no such key; did you mean {name}?" in refusal(word(misspelled, 1))


@pytest.mark.parametrize("place", REFUSED)
def test_a_refused_key_says_why_and_may_stay_with_its_neutral_value(place: str) -> None:
    assert f"{place} is refused: {REFUSED[place]}" in refusal(word(place, "elsewhere"))
    for neutral in {None, NEUTRAL.get(place)}:
        assert read_settings("short", [OUTPUT, word(place, neutral)]) == RCSettings(output_dir=Path("out"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["streams=redis"], "streams: redis is refused, since it would lose groups"),
        (["streams.backend=redis"], "streams: redis is refused"),
        (["train_dataset_names=[{hub_id: a/b, trust_remote_code: true}]"], "trust_remote_code true is refused"),
        (["train_dataset_names=[{hub_id: a/b, name: x}]"], "either a name or a hub_id"),
        (["train_dataset_names=[{hub_id: a/b, splt: x}]"], "names.0.splt: no such key; did you mean split?"),
        (["wandb.use_wandb=true"], "use_wandb true is refused"),
        (["vllm_config.use_v1=false"], "use_v1 false is refused"),
        (["+vllm_config.vllm_kwargs.port=1"], "vllm_kwargs 'port' can't be set"),
        (["attempts=1000", "actor.num_samples_per_problem=2"], "are 2000 samples of a problem, at most 1024"),
        (["summarization_model_path=other"], "summarization_model_path and me.summarization_llm_urls belong together"),
        (["me.llm_urls=http://a:1/v1+ftp://b"], "address 2 of llm_urls must begin with http:// or https://"),
        (["me.llm_urls=http://a:1/v1+http://a:1/v1"], "llm_urls has 2 addresses, 1 of them different"),
        (["me.api_key_variable=NO_SUCH_VARIABLE"], "there is no environment variable 'NO_SUCH_VARIABLE'"),
        (["actor.reasoning_prompt_template='only {problem}'"], "reasoning_prompt_template lacks {curr_summary}"),
        (["actor.reasoning_prompt_template='{problem}{curr_summary}{x}'"], "reasoning_prompt_template has {x}"),
        (["actor.reasoning_prompt_file=no_such_file"], "cannot read the template no_such_file"),
        (["actor.task_template=nothing"], "task_template has {task} 0 times"),
        (["rewards=no_such"], "rewards: must be pure_success, or a table of rewards"),
        (["++train_subset={begin: 5, end: 5}"], "begin 5 is not below end 5"),
        (["actor.max_retries=-1", "seed=-1"], "actor.max_retries: must be greater than or equal to 0, got -1; seed:"),
    ],
)
def test_values_that_do_not_fit_are_refused(words: list[str], why: str) -> None:
    assert why in refusal(*words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["me.llm_urls=http://user:hunter2@host:1/v1"], "must have no user, password or query"),
        (["me.llm_urls=[http://user:hunter2@host:1/v1"], "cannot read"),
        (["++environment.options={key: hunter2, other: 5}"], "environment.options.other: must be a valid string"),
        (["streams.config=http://user:hunter2@host", "seed=x"], "seed: must be a valid integer, got 'x'"),
    ],
)
def test_no_message_shows_a_password(words: list[str], why: str) -> None:
    said = refusal(*words)
    assert why in said
    assert "hunter2" not in said


def test_options_of_the_environment_are_not_shown() -> None:
    settings = read_settings("test_rc", [OUTPUT, "++environment.options={key: hunter2}"])
    assert settings.environment.options["key"].get_secret_value() == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings.model_dump_json()}"


def test_files_of_templates_are_read_once_the_settings_are(tmp_path: Path) -> None:
    template = tmp_path / "reasoning.txt"
    template.write_text("{problem} | {curr_summary}")
    settings = read_settings("test_rc", [OUTPUT, f"actor.reasoning_prompt_file={template}"])
    assert settings.actor.cycles().reasoning_prompt_template == "{problem} | {curr_summary}"
    template.write_bytes(b"x" * (2**16 + 1))
    assert "has more than 65536 bytes" in refusal(f"actor.reasoning_prompt_file={template}")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"mine": "defaults: [mine]"}, "'mine' is named by its own defaults: mine -> mine"),
        ({"mine": "defaults: [a]", "a": "defaults: [mine]"}, "mine -> a -> mine"),
        ({"mine": "defaults: [no_such]"}, "there is no conf/no_such.yaml, and none is packaged as 'no_such'"),
        ({"mine": "defaults: 5"}, "defaults must be a list"),
        ({"mine": "defaults: [[x]]"}, "no name of a file"),
        ({"mine": "actor: [1"}, "cannot read conf/mine.yaml"),
        ({"mine": "actor: 5"}, "actor: must be an object, got 5"),
        ({"mine": "seed: ${no.such}"}, "cannot resolve"),
        ({"mine": "defaults: [../mine]"}, "is no name of a configuration"),
    ],
)
def test_a_file_that_can_not_be_read_is_refused(files: Mapping[str, str], why: str) -> None:
    for name, text in files.items():
        Path(f"conf/{name}.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_settings("mine", [OUTPUT])
    assert why in str(refused.value)


def test_defaults_come_before_the_file_unless_it_says_so() -> None:
    Path("conf/a.yaml").write_text("seed: 1\nattempts: 2")
    Path("conf/first.yaml").write_text("defaults: [a, {streams: kafka}, _self_]\nseed: 3")
    Path("conf/last.yaml").write_text("defaults: [_self_, a]\nseed: 3")
    first, last = (read_settings(name, [OUTPUT]) for name in ("first", "last"))
    assert (first.seed, first.attempts, first.streams.backend) == (3, 2, "kafka")
    assert (last.seed, last.attempts) == (1, 2)


def test_a_policy_of_ones_own_is_imported_and_must_be_an_async_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policies.py").write_text(
        "async def good(cfg, llm, problem, session): ...\ndef bad(cfg, llm, problem, session): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    key = "actor.solution_rollout_policy"
    assert read_settings("test_rc", [OUTPUT, f"{key}=own_policies.good"]).actor.solution_rollout_policy.endswith("good")
    assert f"{key} = 'own_policies.bad' is a function, no async function" in refusal(f"{key}=own_policies.bad")
    assert f"{key} = 'own_policies.none' cannot be imported" in refusal(f"{key}=own_policies.none")
    assert "pipelinerl.domains.math.rollouts.generate_math_rollot" in refusal(
        f"{key}=pipelinerl.domains.math.rollouts.generate_math_rollot"
    )
