"""What one collection is told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from rollstream.agents.samples import SampleBounds
from rollstream.engines.settings import EngineSettings
from rollstream.environments.pool.pool import PoolBounds
from rollstream.offline.options import SamplesOptions
from rollstream.offline.paths import OutputPaths
from rollstream.process.settings.declared import Declaration
from rollstream.process.settings.tools import ToolSettings
from rollstream.rows.write import Kind
from rollstream.schemas.prompt import AgentChoice, Sampling


class CollectSettings(SamplesOptions):
    """`described`: what else must be the same for a resume, e.g. the engine's model; JSON values without secrets.

    environment: its rubric scores the samples; "" for none. jsonl_copy: the rows of the output once more, as JSONL.
    beside: how the names of the files beside the output begin; "": as the output's. typed_as: how this command writes
    options that messages name, e.g. `--overwrite`.
    """

    output: Path
    kind: Kind
    sampling: Sampling
    described: Mapping[str, Any]
    environment: str = ""
    environments: Mapping[str, Declaration] = Field(default_factory=dict)
    agent: AgentChoice = Field(default_factory=AgentChoice)
    agents: Mapping[str, Declaration] = Field(default_factory=dict)
    tools: Mapping[str, ToolSettings] = Field(default_factory=dict)
    engines: Mapping[str, EngineSettings] = Field(default_factory=dict)
    bounds: SampleBounds = Field(default_factory=lambda: SampleBounds(deadline_seconds=600.0, max_tries=3))
    pool: PoolBounds = Field(default_factory=PoolBounds)
    jsonl_copy: Path | None = None
    beside: str = ""
    typed_as: Mapping[str, str] = Field(default_factory=dict)

    @property
    def paths(self) -> OutputPaths:
        """Its files."""
        return OutputPaths(self.output, self.beside)

    def worded(self, text: str) -> str:
        """A message with the options as they are typed."""
        for option, typed in self.typed_as.items():
            text = text.replace(option, typed)
        return text

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
