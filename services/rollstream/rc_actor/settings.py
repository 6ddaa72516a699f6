"""All keys of the Reasoning Cache actor, under the names of the original's configurations."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from rollstream.environments.rewards.table import RewardTable
from rollstream.offline.options import MaxTokens, Temperature, TopP
from rollstream.process.settings.options import CommandOptions
from rollstream.rc_actor.actor_settings import PolicyPath, RCActorSettings
from rollstream.rc_actor.built_in import MATH_DATASETS
from rollstream.rc_actor.reward_settings import RewardChoice
from rollstream.schemas.addresses import checked_address, may_hold_a_password
from rollstream.schemas.bounds import MAX_GROUP_SIZE
from rollstream.schemas.prompt import AgentChoice, Sampling

_MAX_ADDRESSES: Final = 64
_MAX_OPTIONS: Final = 128
_MAX_DATASETS: Final = 100
_MAX_COUNT: Final = 2**31 - 1
_FLAG: Final = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_SET_HERE: Final = frozenset(("host", "port", "model", "served_model_name", "api_key", "trust_remote_code"))

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Flag = str | int | float | bool | None


class LLMParameters(CommandOptions):
    """How a model is sampled."""

    max_tokens: MaxTokens = Field(default=16384, description="Most tokens of one answer")
    temperature: Temperature = Field(default=1.0, description="Divides the logits; 0 is greedy")
    top_p: TopP = Field(default=1.0, description="Nucleus bound; other than 1 collects, but can't train")
    top_k: int = Field(default=0, ge=0, le=_MAX_COUNT, description="Keep the k most likely tokens; 0: all")


class LLMSettings(CommandOptions):
    """One way to ask a model."""

    parameters: LLMParameters = Field(default_factory=LLMParameters, description="How it is sampled")


class RCStreamSettings(CommandOptions):
    """Where groups are written."""

    backend: Literal["files", "kafka"] = Field(
        default="files", description="files: below output_dir/streams; kafka: the topics rc_actor, rc_actor_test, …"
    )
    config: Path | None = Field(default=None, description="rollstream.toml of the run whose [kafka] is used")


def _with_backend(given: Any) -> Any:
    if given == "redis" or (isinstance(given, dict) and given.get("backend") == "redis"):
        raise ValueError("redis is refused, since it would lose groups when it is full: take files or kafka")
    return {"backend": given} if isinstance(given, str) else given


class AddressSettings(CommandOptions):
    """`me`: what this process is told by whoever starts it."""

    llm_urls: Text = Field(
        default="http://localhost:8000/v1", description="OpenAI-compatible servers of the model, joined by +"
    )
    summarization_llm_urls: Name = Field(
        default="", description="Servers of summarization_model_path, joined by +; empty: the model itself summarizes"
    )
    api_key_variable: Name | None = Field(
        default=None, description="Environment variable that holds the servers' key; null: no key"
    )

    ready_seconds: float = Field(
        default=600.0, gt=0, le=86400, description="How long servers are awaited at the start, without calling a model"
    )

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        for key in ("llm_urls", "summarization_llm_urls"):
            urls = split_urls(getattr(self, key))
            if len(urls) > _MAX_ADDRESSES or len(set(urls)) < len(urls):
                raise ValueError(
                    f"{key} has {len(urls)} addresses, {len(set(urls))} of them different: write each once, at most "
                    f"{_MAX_ADDRESSES}"
                )
            for number, url in enumerate(urls, 1):
                try:
                    _plain_address(url)
                except ValueError as error:
                    raise ValueError(f"address {number} of {key} {error}") from error
        return self


def _plain_address(url: str) -> str:
    """Raises ValueError, which never shows it."""
    checked_address(url, "http", "https")
    if may_hold_a_password(url) or "#" in url:
        raise ValueError("must have no user, password or query: name the key's variable in me.api_key_variable")
    return url


def split_urls(urls: str) -> tuple[str, ...]:
    """The addresses of a text that joins them by +."""
    return tuple(urls.split("+")) if urls else ()


def _with_name(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


class DatasetSettings(CommandOptions):
    """One data set: a text is its `name`; `{hub_id, split}` is one on the Hugging Face hub."""

    name: Text | None = Field(
        default=None, description="A .jsonl or .parquet file or a directory of them, a name of `datasets`, or hf://…"
    )
    hub_id: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", max_length=200)] | None = Field(
        default=None, description="OWNER/NAME on the hub; its commit is noted, and the same one read again"
    )
    split: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=100)] = Field(
        default="train", description="Split of hub_id"
    )
    config: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=100)] | None = Field(
        default=None, description="Configuration of hub_id"
    )
    revision: Annotated[str, Field(pattern=r"^[\w./-]+$", max_length=200)] | None = Field(
        default=None, description="Branch, tag or commit of hub_id; null: the newest at the first start"
    )
    trust_remote_code: bool = Field(default=False, description="Only false: no code of a data set is ever run")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.trust_remote_code:
            raise ValueError(
                "trust_remote_code true is refused: no code of a data set is run here; leave it out, and take a data "
                "set of parquet or JSONL files"
            )
        if (self.name is None) == (self.hub_id is None):
            raise ValueError("a data set has either a name or a hub_id: write one of them")
        if self.name is not None and self.model_fields_set - {"name", "trust_remote_code"}:
            raise ValueError("split, config and revision belong to hub_id: leave them out")
        return self


DatasetNames = tuple[Annotated[DatasetSettings, BeforeValidator(_with_name)], ...]


class SubsetSettings(CommandOptions):
    """Some rows of the training data."""

    begin: int = Field(default=0, ge=0, le=_MAX_COUNT, description="First row")
    end: int = Field(ge=1, le=_MAX_COUNT, description="The row after the last")

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if self.end <= self.begin:
            raise ValueError(f"begin {self.begin} is not below end {self.end}: no row is left; raise end")
        return self


class ScoringSettings(CommandOptions):
    """`environment`: what scores reasoning."""

    target: Literal["pipelinerl.domains.math.MathEnvironment"] | None = Field(
        default=None, alias="_target_", description="The original's class, which is our environment math"
    )
    name: Text = Field(default="math", description="Environment whose rubric scores")
    path: PolicyPath | None = Field(default=None, description="Class of your own: package.module.name; null: built in")
    options: Mapping[Name, Annotated[SecretStr, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=_MAX_OPTIONS, description="What it is made with, as text; may be secret"
    )
    verifier_url: Text | None = Field(
        default=None, description="Service that your environment asks; its GET /health is awaited. null: none"
    )

    @field_validator("verifier_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        return url if url is None else _plain_address(url)


class VllmServerSettings(CommandOptions):
    """`vllm_config`: how `rollstream rc-actor-local` starts servers."""

    use_v1: bool = Field(default=True, description="Only true: this vLLM has no other engine")
    vllm_kwargs: Mapping[Name, Flag] = Field(
        default_factory=dict,
        max_length=_MAX_OPTIONS,
        description="Options of `vllm serve`: name without dashes, and value; null or true: a flag alone",
    )

    @model_validator(mode="after")
    def _leaves_the_address(self) -> Self:
        if not self.use_v1:
            raise ValueError("use_v1 false is refused: this vLLM has no engine before v1; leave it out")
        for name in self.vllm_kwargs:
            if not _FLAG.fullmatch(name) or name.replace("-", "_") in _SET_HERE:
                raise ValueError(
                    f"vllm_kwargs {name[:60]!r} can't be set: it must be a name of letters, digits, - and _, and none "
                    f"of {', '.join(sorted(_SET_HERE))}, which rc-actor-local sets"
                )
        return self


class WorldSettings(CommandOptions):
    """How much `rollstream rc-actor-local` starts."""

    replicas: int = Field(default=1, ge=1, le=64, description="vLLM servers")
    first_port: int = Field(default=8080, ge=1024, le=65472, description="Port of the first; others have the next ones")


class WandbSettings(CommandOptions):
    """Weights & Biases."""

    use_wandb: bool = Field(default=False, description="Only false: figures go into the stream rc_stats")

    @model_validator(mode="after")
    def _is_off(self) -> Self:
        if self.use_wandb:
            raise ValueError("use_wandb true is refused: figures go into the stream rc_stats; set it to false")
        return self


class DebugSettings(CommandOptions):
    """How much is said."""

    mode: bool = Field(default=False, description="Say each group that ends")


class RCSettings(CommandOptions):
    """What one run of the actor is told."""

    output_dir: Path = Field(description="Directory of streams, journal and figures; a second start goes on there")
    model_path: Text = Field(
        default="Qwen/Qwen3-4B-Instruct-2507", description="Name of the model at the servers, or its directory"
    )
    summarization_model_path: Name = Field(default="", description="Model of me.summarization_llm_urls")
    actor: RCActorSettings = Field(default_factory=RCActorSettings, description="Cycles, prompts, policies and bounds")
    llm: LLMSettings = Field(default_factory=LLMSettings, description="How training problems are reasoned upon")
    test_llm: LLMSettings | None = Field(default=None, description="The same for test problems; null: as llm")
    summarization_llm: LLMSettings | None = Field(
        default=None, description="How summaries are sampled; null: as reasoning"
    )
    me: AddressSettings = Field(default_factory=AddressSettings, description="Addresses of the model servers")
    streams: Annotated[RCStreamSettings, BeforeValidator(_with_backend)] = Field(
        default_factory=RCStreamSettings, description="Where groups are written"
    )
    dataset_loader: PolicyPath = Field(
        default=MATH_DATASETS, description="Built in, or your own function from names to rows: package.module.function"
    )
    train_dataset_names: DatasetNames = Field(
        default=(), max_length=_MAX_DATASETS, description="Data sets to collect from, one after the other"
    )
    test_dataset_names: DatasetNames = Field(
        default=(), max_length=_MAX_DATASETS, description="Data sets of evaluations"
    )
    datasets: Mapping[Name, Path] = Field(
        default_factory=dict, max_length=_MAX_DATASETS, description="Where named data sets lie: file or directory"
    )
    train_subset: SubsetSettings | None = Field(default=None, description="Rows of the training data; null: all")
    environment: ScoringSettings = Field(default_factory=ScoringSettings, description="What scores reasoning")
    rewards: RewardChoice = Field(default_factory=RewardTable, description="The table of rewards, or pure_success")
    seed: int = Field(default=42, ge=0, le=_MAX_COUNT, description="Of sampling and of the order of problems")
    attempts: int = Field(
        default=1, ge=1, le=MAX_GROUP_SIZE, description="Samples of each problem, times actor.num_samples_per_problem"
    )
    eval_every_n_versions: int = Field(
        default=0,
        ge=0,
        le=_MAX_COUNT,
        description="Ask the test data each time the weights are so many versions newer; 0: never",
    )
    eval_only: bool = Field(default=False, description="Ask the test data alone, once")
    force_restart: bool = Field(default=False, description="Begin anew: remove what an earlier run wrote there")
    vllm_config: VllmServerSettings = Field(
        default_factory=VllmServerSettings, description="How rc-actor-local starts servers"
    )
    world: WorldSettings = Field(default_factory=WorldSettings, description="How many servers rc-actor-local starts")
    wandb: WandbSettings = Field(default_factory=WandbSettings, description="Weights & Biases")
    debug: DebugSettings = Field(default_factory=DebugSettings, description="How much is said")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.group_size > MAX_GROUP_SIZE:
            raise ValueError(
                f"attempts {self.attempts} x actor.num_samples_per_problem {self.actor.num_samples_per_problem} are "
                f"{self.group_size} samples of a problem, at most {MAX_GROUP_SIZE}: lower one of them"
            )
        if bool(self.summarization_model_path) != bool(self.me.summarization_llm_urls):
            raise ValueError(
                "summarization_model_path and me.summarization_llm_urls belong together: set both, or none of them"
            )
        return self

    @property
    def group_size(self) -> int:
        """Samples of one problem, which share a group_id."""
        return self.attempts * self.actor.num_samples_per_problem

    @property
    def num_places(self) -> int:
        """Most rollouts in flight at all addresses of the model together."""
        return self.actor.llm_max_rollouts * len(split_urls(self.me.llm_urls))

    def sampling(self, *, is_test: bool = False) -> Sampling:
        """How reasoning is sampled."""
        llm = self.test_llm if is_test and self.test_llm is not None else self.llm
        return Sampling(seed=self.seed, **llm.parameters.model_dump())

    def agent(self, summarizer: str = "") -> AgentChoice:
        """The agent `reasoning_cache` with these options. `summarizer`: its engine's name; "": the model itself."""
        cycles = self.actor.cycles()
        options = {name: str(value) for name, value in asdict(cycles).items() if not isinstance(value, bool)}
        options |= {
            "use_think_tags": str(cycles.use_think_tags).lower(),
            "num_reasoning_steps": str(self.actor.num_reasoning_steps),
            "summarizer": summarizer,
        }
        if self.summarization_llm is not None:
            given = self.summarization_llm.parameters
            options |= {f"summary_{name}": str(getattr(given, name)) for name in ("temperature", "top_p")}
            options |= {"summary_top_k": str(given.top_k or ""), "max_summary_tokens": str(given.max_tokens)}
        return AgentChoice(name="reasoning_cache", options=options)
