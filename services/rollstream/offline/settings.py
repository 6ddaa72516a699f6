"""What one collection is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollstream.agents.samples import SampleBounds
from rollstream.environments.pool.pool import PoolBounds
from rollstream.offline.options import DEFAULT_FAIL_OVER, DEFAULT_MAX_ATTEMPTS
from rollstream.process.settings.declared import Declaration
from rollstream.rows.write import Kind
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS, MAX_TEMPERATURE, MIN_TEMPERATURE
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import AgentChoice, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """`described`: what else must be the same for a resume, e.g. the engine's model; JSON values without secrets.

    environment: its rubric scores the samples; "" for none. jsonl_copy: the rows of the output once more, as JSONL.
    retry_failed: what failed `max_attempts` times is asked as if it never was. fail_over: the share of samples without
    a response above which the collection failed.
    """

    output: Path
    kind: Kind
    num_samples: int
    sampling: Sampling
    concurrency: int
    described: Mapping[str, Any]
    environment: str = ""
    environments: Mapping[str, Declaration] = field(default_factory=dict)
    agent: AgentChoice = field(default_factory=AgentChoice)
    agents: Mapping[str, Declaration] = field(default_factory=dict)
    bounds: SampleBounds = field(default_factory=lambda: SampleBounds(deadline_seconds=600.0, max_tries=3))
    pool: PoolBounds = field(default_factory=PoolBounds)
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    retry_failed: bool = False
    fail_over: float = DEFAULT_FAIL_OVER
    overwrite: bool = False
    jsonl_copy: Path | None = None

    def __post_init__(self) -> None:
        # An environment of one's own says how it is sampled, too.
        _within("max_tokens", self.sampling.max_tokens, 1, MAX_SAMPLE_TOKENS)
        if self.sampling.temperature:
            _within("temperature (unless it is 0)", self.sampling.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)

    def compared(self) -> dict[str, Any]:
        """What a resume must have in common with the beginning."""
        return {
            "output": self.output.name,
            "format": self.kind,
            "num_samples": self.num_samples,
            **self.sampling.model_dump(mode="json", include={"temperature", "top_p", "top_k", "max_tokens", "seed"}),
            "stop": list(self.sampling.stop),
            "environment": self.environment,
            "agent": self.agent.model_dump(mode="json"),
            **self.described,
        }


def _within(name: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise ConfigurationError(f"{name} {value:g} is not within {lowest:g} to {highest:g}: change it")
