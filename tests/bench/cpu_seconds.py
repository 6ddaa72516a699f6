"""CPU seconds of a local run's processes, by what they are: the stages, vLLM's engine, Kafka and Redis."""

from typing import Final

import psutil

from rollstream.local.stack import LocalStack
from rollstream.local.supervisor import Supervisor

_ENGINE: Final = "VLLM::EngineCor"
"""The name of the process in which vLLM runs its model, as far as Linux keeps it."""


class CpuSeconds:
    """Notes the CPU seconds of every process step by step."""

    def __init__(self, stack: LocalStack, supervisor: Supervisor) -> None:
        self._stack = stack
        self._supervisor = supervisor
        self._noted: dict[int, dict[str, float]] = {}

    def note(self, step: int) -> None:
        """Note what all processes have used until now."""
        used: dict[str, float] = {}
        roots = {service.name: service.pid for service in self._stack.status()}
        roots |= {stage.name: stage.pid for stage in self._supervisor.statuses()}
        for name, pid in roots.items():
            for process_name, seconds in _tree(name, pid):
                used[process_name] = used.get(process_name, 0.0) + seconds
        self._noted[step] = used

    def per_step(self, after: int) -> dict[str, float]:
        """Mean CPU seconds of a step, between the first note at or after step `after` and the last note."""
        first = min((step for step in self._noted if step >= after), default=0)
        # The trainer ends with its last step, so it may be missing from the last note.
        last = max((step for step, used in self._noted.items() if "trainer" in used), default=0)
        if last <= first:
            return {}
        begin, end = self._noted[first], self._noted[last]
        return {name: (end[name] - begin.get(name, 0.0)) / (last - first) for name in end}


def _tree(name: str, pid: int | None) -> list[tuple[str, float]]:
    """Of the process and all below it: name and CPU seconds. A process that has ended is left out."""
    found = []
    try:
        root = psutil.Process(pid) if pid is not None else None
        for process in [root, *root.children(recursive=True)] if root else []:
            times = process.cpu_times()
            is_engine = process.name().startswith(_ENGINE)
            found.append(("engine" if is_engine else name, times.user + times.system))
    except psutil.NoSuchProcess:
        pass
    return found
