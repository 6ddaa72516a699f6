"""What a generator's process has once. Its training lane uses it, and may be made anew; so does its HTTP endpoint."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollstream.agents.samples import identity_of
from rollstream.bus.run import Run
from rollstream.engines.protocol import Engine
from rollstream.generator.current_version import CurrentVersion
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.tracing.spans import OFF, Tracing
from rollstream.schemas.rollout import GeneratorIdentity
from rollstream.tools.protocol import ToolSet


@dataclass(frozen=True, kw_only=True)
class GeneratorParts:
    """`engine` has started. `current` says which version it generates with. `others`: what agents may ask too."""

    engine: Engine
    settings: GeneratorSettings
    tracing: Tracing = OFF
    tools: Mapping[str, ToolSet] = field(default_factory=dict)
    others: Mapping[str, Engine] = field(default_factory=dict)
    run: Run = field(init=False)
    identity: GeneratorIdentity = field(init=False)
    current: CurrentVersion = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        generator_id = settings.generator_id or f"{socket.gethostname()}-{os.getpid()}"
        object.__setattr__(self, "run", Run(settings))
        object.__setattr__(self, "identity", identity_of(self.engine, generator_id))
        # An evaluation prompt waits for its version for as long as others may hold that version back.
        current = CurrentVersion(load_seconds=settings.evaluation_hold_seconds)
        object.__setattr__(self, "current", current)
