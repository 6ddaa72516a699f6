"""The keys below `actor`: cycles, prompts, policies, and how much runs at once."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from rollstream.agents.problem_state import (
    MAX_TEMPLATE_BYTES,
    REASONING_PROMPT,
    SUMMARIZATION_PROMPT,
    CycleOptions,
    ReasoningPromptStyle,
    SummarizationStyle,
)
from rollstream.agents.reasoning_cache import MAX_CYCLES
from rollstream.offline.options import MAX_CONCURRENCY
from rollstream.process.settings.options import CommandOptions
from rollstream.rc_actor.built_in import MATH_ROLLOUT, MAX_PATH_CHARACTERS, PATH_PATTERN
from rollstream.schemas.bounds import MAX_GROUP_SIZE
from rollstream.schemas.errors import ConfigurationError

MIN_ENTRY_BYTES: Final = 1024
MAX_ENTRY_BYTES: Final = 2**31
_MAX_QUEUE: Final = 65536
_PROBLEM: Final = "{task}"

Template = Annotated[str, Field(max_length=MAX_TEMPLATE_BYTES)]
PolicyPath = Annotated[str, Field(pattern=PATH_PATTERN, max_length=MAX_PATH_CHARACTERS)]


class RCActorSettings(CommandOptions):
    """How one problem is worked on, and how many at once."""

    num_reasoning_steps: int = Field(
        default=3, ge=1, le=MAX_CYCLES, description="Cycles of reasoning and summary for each sample"
    )
    num_samples_per_problem: int = Field(default=1, ge=1, le=MAX_GROUP_SIZE, description="Samples of each problem")
    use_think_tags: bool = Field(
        default=False, description="Open a <think> tag before the answer; what counts is before the closing tag"
    )
    reasoning_prompt_template: Template = Field(
        default=REASONING_PROMPT, description="Prompt of reasoning, with {problem} and {curr_summary}"
    )
    summarization_prompt_template: Template = Field(
        default=SUMMARIZATION_PROMPT,
        description="Prompt of a summary, with {problem}, {existing_summary} and {reasoning}",
    )
    reasoning_prompt_file: Path | None = Field(
        default=None, description="File with reasoning_prompt_template, instead of it"
    )
    summarization_prompt_file: Path | None = Field(
        default=None, description="File with summarization_prompt_template, instead of it"
    )
    reasoning_prompt_style: ReasoningPromptStyle = Field(
        default="structured", description="structured: the prompt is a user message; completion: plain text"
    )
    summarization_style: SummarizationStyle = Field(
        default="summ", description="summ: a summary replaces the one before; sequential: it follows it"
    )
    system_prompt: Template = Field(default="", description="System message before each prompt; empty: none")
    task_template: Template = Field(
        default=_PROBLEM, description="What is asked of a problem, with {task}, the text of the data set"
    )
    solution_rollout_policy: PolicyPath = Field(
        default=MATH_ROLLOUT, description="Built in, or your own async function: package.module.function"
    )
    summarization_rollout_policy: PolicyPath = Field(default=MATH_ROLLOUT, description="The same for summaries")
    rollout_workers: int = Field(default=1, ge=1, le=64, description="Schedulers that take problems, side by side")
    llm_max_rollouts: int = Field(
        default=16, ge=1, le=MAX_CONCURRENCY, description="Most rollouts in flight at one address of me.llm_urls"
    )
    summarization_max_rollouts: int = Field(
        default=16, ge=1, le=MAX_CONCURRENCY, description="The same at one of me.summarization_llm_urls"
    )
    problem_queue_size: int = Field(default=10, ge=1, le=_MAX_QUEUE, description="Most problems that wait for a worker")
    result_queue_size: int = Field(default=10, ge=1, le=_MAX_QUEUE, description="Most groups that wait to be written")
    shared_memory_entry_size: int = Field(
        default=5 * 2**20,
        ge=MIN_ENTRY_BYTES,
        le=MAX_ENTRY_BYTES,
        json_schema_extra={"unit": "bytes"},
        description="Largest line of a group in the stream; a larger group fails as too_large",
    )
    throughput_window_size: int = Field(
        default=10, ge=1, le=100_000, description="Last groups that the throughput is computed of"
    )
    log_each_n_secs: float = Field(
        default=0.0, ge=0, le=86400, json_schema_extra={"unit": "seconds"}, description="Say figures so often; 0: never"
    )
    max_retries: int = Field(default=3, ge=0, le=100, description="Repetitions of a step that a passing error ended")
    retry_base_delay: float = Field(
        default=1.0,
        ge=0,
        le=3600,
        json_schema_extra={"unit": "seconds"},
        description="Pause before the first repetition; it doubles each time",
    )
    discount_factor: float = Field(
        default=1.0, gt=0, le=1, description="A reward is multiplied by it once for each token of the answer"
    )

    @model_validator(mode="after")
    def _has_prompts(self) -> Self:
        for kind in ("reasoning", "summarization"):
            names = {f"{kind}_prompt_template", f"{kind}_prompt_file"}
            if getattr(self, f"{kind}_prompt_file") is not None and names <= self.model_fields_set:
                raise ValueError(f"{kind}_prompt_template and {kind}_prompt_file are both set: leave one out")
        if self.task_template.count(_PROBLEM) != 1:
            found = self.task_template.count(_PROBLEM)
            raise ValueError(f"task_template has {{task}} {found} times: write it once, where the problem stands")
        try:
            self.cycles()
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        return self

    def cycles(self) -> CycleOptions:
        """How the prompts of a sample are made; reads the files of templates. Raises `ConfigurationError`."""
        return CycleOptions(
            reasoning_prompt_template=_text(self.reasoning_prompt_file, self.reasoning_prompt_template),
            summarization_prompt_template=_text(self.summarization_prompt_file, self.summarization_prompt_template),
            use_think_tags=self.use_think_tags,
            reasoning_prompt_style=self.reasoning_prompt_style,
            summarization_style=self.summarization_style,
        )

    def task(self, problem: str) -> str:
        """What is asked of the problem; its own braces stay."""
        return self.task_template.replace(_PROBLEM, problem)


def _text(file: Path | None, template: str) -> str:
    if file is None:
        return template
    try:
        with file.open("rb") as stream:
            found = stream.read(MAX_TEMPLATE_BYTES + 1)
        if len(found) > MAX_TEMPLATE_BYTES:
            raise ConfigurationError(f"{file} has more than {MAX_TEMPLATE_BYTES} bytes: shorten the template")
        return found.decode()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"cannot read the template {file}: {error}") from error
