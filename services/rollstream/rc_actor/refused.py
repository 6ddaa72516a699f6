"""Keys of the original's configurations that are refused here, each with its reason.

A neutral value says what holds here anyway, e.g. `wandb.wandb_name: null`; with it the key may stay.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_TRAINER: Final = "training is the trainer's, in rollstream.toml: "
_STATES: Final = "states are asked by the producer source `states`, in rollstream.toml: "
_PARTS: Final = "no process is placed by shares of a machine: "
_JUDGE: Final = "no model judges here: take an environment of your own, environment.path"
_SHARED: Final = "stages talk through Kafka, no process shares memory: "
_WANDB: Final = "figures go into the stream rc_stats: "

REFUSED: Final[Mapping[str, str]] = {
    "finetune.seed": f"{_TRAINER}[trainer.learning] seed",
    "finetune.attempts": f"{_STATES}group_size",
    "finetune.train_batch_size": f"{_TRAINER}groups_per_step",
    "finetune.valid_batch_size": f"{_TRAINER}groups_per_step; `rollstream evaluate` evaluates",
    "finetune.gradient_accumulation_passes": f"{_TRAINER}[trainer.learning] minibatches, tokens_per_microbatch",
    "finetune.seq_length": f"{_TRAINER}[trainer.learning] max_sample_tokens",
    "finetune.seq_parallel": f"{_TRAINER}it does not divide sequences",
    "finetune.learning_rate": f"{_TRAINER}[trainer.learning] learning_rate",
    "finetune.save_checkpoint_steps": f"{_TRAINER}checkpoint_every",
    "finetune.push_to_hub": f"{_TRAINER}it writes to the weight store alone",
    "finetune.hub_model_id": f"{_TRAINER}it writes to the weight store alone",
    "finetune.hub_model_revision": f"{_TRAINER}it writes to the weight store alone",
    "finetune.hub_ignore_patterns": f"{_TRAINER}it writes to the weight store alone",
    "finetune.max_lag": f"{_TRAINER}max_policy_lag, in weight versions",
    "finetune": f"{_TRAINER}leave it out",
    "actor.attempts": "attempts stand at the top: write attempts=…",
    "actor.model_class": "the servers' chat template and the tokenizer say it: only qwen may stay",
    "actor.use_rc_stream": f"{_STATES}source",
    "actor.rc_stream_topic": f"{_STATES}it reads serve-scored",
    "actor.rc_stream_samples_per_batch": f"{_STATES}[producer.states] per_rollout",
    "actor.rollout_policy": f"{_STATES}agent",
    "rc_actor": "its keys are those of actor here: write actor; a second actor is the producer source `states`",
    "actor_llm": f"{_STATES}sampling",
    "preprocess.input": f"{_SHARED}the trainer reads `scored`",
    "preprocess.output": f"{_SHARED}the trainer reads `scored`",
    "preprocess.n_workers": f"{_SHARED}start more scorers",
    "preprocess.chunk_n_groups": f"{_SHARED}[trainer] groups_per_step",
    "preprocess.raw_queue_size": f"{_SHARED}credit bounds what waits",
    "preprocess.input_queue_size": f"{_SHARED}credit bounds what waits",
    "preprocess.output_queue_size": f"{_SHARED}credit bounds what waits",
    "preprocess.dataset_buffer_size": f"{_SHARED}[trainer] buffer_groups",
    "preprocess.ring_buffer_size": f"{_SHARED}[trainer] buffer_groups",
    "preprocess.max_ready_samples_per_lead": f"{_SHARED}[trainer] buffer_groups",
    "preprocess.pop_old_data": f"{_SHARED}[trainer] max_policy_lag",
    "preprocess.shared_memory_entry_size": f"{_SHARED}actor.shared_memory_entry_size bounds a line",
    "preprocess.log_every_n_samples": f"{_SHARED}see /metrics of each stage",
    "preprocess": f"{_SHARED}leave it out",
    "actor_vllm_config": "one model is served here: write vllm_config",
    "rc_actor_vllm_config": "one model is served here: write vllm_config",
    "summarization_vllm_config": "start the summarizer's servers yourself and name them in me.summarization_llm_urls",
    "world.rc_actor_fraction": f"{_PARTS}world.replicas says how many servers are started",
    "world.actor_fraction": f"{_PARTS}world.replicas says how many servers are started",
    "world.summarization_fraction": f"{_PARTS}name the summarizer's servers in me.summarization_llm_urls",
    "world.preprocessor_fraction": f"{_PARTS}start the scorers you need",
    "world.finetune_fraction": f"{_PARTS}start the trainer beside",
    "world.env_replicas": f"{_PARTS}verdicts are made in this process's children",
    "world.actor_group_port": f"{_PARTS}weights come from the weight store",
    "world.environment_start_port": f"{_PARTS}verdicts are made in this process's children",
    "test_world.actor_fraction": f"{_PARTS}world.replicas says how many servers are started",
    "test_world.env_replicas": f"{_PARTS}verdicts are made in this process's children",
    "test_world.actor_group_port": f"{_PARTS}weights come from the weight store",
    "test_world.environment_start_port": f"{_PARTS}verdicts are made in this process's children",
    "test_world": f"{_PARTS}leave it out",
    "jobs": "each stage is a command of its own: `rollstream up` starts those of a run",
    "accelerate_config": f"{_TRAINER}the backend is chosen in rollstream.training",
    "use_deepspeed": f"{_TRAINER}there is no DeepSpeed",
    "deepspeed_config": f"{_TRAINER}there is no DeepSpeed",
    "use_fsdp": f"{_TRAINER}rollstream.training has an FSDP backend",
    "fsdp": f"{_TRAINER}rollstream.training has an FSDP backend",
    "pop_old_data": f"{_TRAINER}max_policy_lag",
    "max_lag": f"{_TRAINER}max_policy_lag, in weight versions",
    "debug.streams_from": "a second start with the same output_dir goes on with its streams",
    "debug.place_inference_workers": f"{_PARTS}world.replicas says how many servers are started",
    "debug.use_existing_llms": "the servers of me.llm_urls are used; `rollstream rc-actor-local` starts its own",
    "me.job_idx": "a process knows of no other job",
    "hydra": "nothing is written but into output_dir: leave it out",
    "wandb.wandb_id": f"{_WANDB}leave it out",
    "wandb.wandb_name": f"{_WANDB}leave it out",
    "wandb.wandb_entity_name": f"{_WANDB}leave it out",
    "wandb.wandb_project_name": f"{_WANDB}leave it out",
    "wandb.wandb_resume": f"{_WANDB}leave it out",
    "wandb.wandb_use_basename": f"{_WANDB}leave it out",
    "wandb.wandb_workspace_root": f"{_WANDB}leave it out",
    "wandb.wandb_group": f"{_WANDB}leave it out",
    "wandb.wandb_dir": f"{_WANDB}leave it out",
    "wandb.tags": f"{_WANDB}leave it out",
    "environment.model_name": _JUDGE,
    "environment.sampling_kwargs": _JUDGE,
    "environment.prompt_name": _JUDGE,
    "llm_grader.local": _JUDGE,
    "llm_grader.name": _JUDGE,
    "llm_grader.sampling_kwargs": _JUDGE,
    "llm_grader.reasoning_delimiters": _JUDGE,
    "llm_grader.prompt_name": _JUDGE,
    "llm_grader.vllm_kwargs": _JUDGE,
    "llm_grader": _JUDGE,
}
"""By the key's place; what is below a key is refused with it."""
NEUTRAL: Final[Mapping[str, Any]] = {
    "finetune.push_to_hub": False,
    "actor.model_class": "qwen",
    "actor.use_rc_stream": False,
    "use_deepspeed": False,
    "use_fsdp": False,
    "debug.use_existing_llms": True,
    "debug.place_inference_workers": False,
    "wandb.wandb_use_basename": False,
    "preprocess.pop_old_data": False,
    "pop_old_data": False,
}
"""Values besides null with which a key may stay."""


def without_refused(values: Mapping[str, Any], above: str = "") -> tuple[dict[str, Any], list[str]]:
    """The values without refused keys, and a sentence for each of these that has another than its neutral value."""
    kept: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in values.items():
        place = f"{above}{name}"
        if isinstance(value, Mapping) and _has_below(place):
            below, found = without_refused(value, f"{place}.")
            problems += found
            if below and place in REFUSED:
                problems += [_sentence(f"{place}.{key}", place) for key in below]
            elif below or not value or place not in REFUSED:
                kept[name] = below
        elif place not in REFUSED:
            kept[name] = value
        elif not _is_neutral(place, value):
            problems.append(_sentence(place, place))
    return kept, problems


def refused_below(above: tuple[str, ...]) -> Iterator[str]:
    """Names of refused keys directly below a place, so that a misspelled one is told its nearest."""
    for place in REFUSED:
        *before, name = place.split(".")
        if tuple(before) == above:
            yield name


def _has_below(place: str) -> bool:
    return any(known.startswith(f"{place}.") for known in REFUSED)


def _is_neutral(place: str, value: Any) -> bool:
    return value is None or (place in NEUTRAL and type(value) is type(NEUTRAL[place]) and value == NEUTRAL[place])


def _sentence(key: str, place: str) -> str:
    return f"{key} is refused: {REFUSED[place]}"
