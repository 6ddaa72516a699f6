"""What `rollstream generator` does on a machine that only lends its GPUs: see `[generator.engine.nodes]`.

It knows neither Kafka nor Redis. It ends when it is asked to, and with an error when the engine that it lends them to
ends, or one of vLLM's processes here: then the processes on all machines must start again.
"""

from rollstream.engines.vllm.lent import lend
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.health import Health
from rollstream.process.stop import Stop, ending_within

_CHECK = "engine"


def run_lending(settings: GeneratorSettings, stop: Stop) -> None:
    """Serve the generator on the machine of rank 0. Never returns: the process ends when `stop` is asked.

    Raises `EngineDeadError` when the engine or one of vLLM's processes here ends.
    """
    settings.log_resolved()
    health = Health()
    health.serve(settings.health_host, settings.health_port)
    nodes = settings.engine.nodes
    health.check(_CHECK, False, f"the engine at {nodes.leader}:{nodes.port} has not reached this machine yet")
    # At once: nothing of what is computed here counts before it has reached the generator.
    with ending_within(stop, 0.0):
        lend(settings.engine, on_ready=lambda: health.check(_CHECK, True))
