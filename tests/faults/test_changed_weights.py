"""A version's files that somebody changes between the check of their sums and the end of the load."""

from functools import partial
from pathlib import Path

from rollstream.engines.protocol import LoadReport
from rollstream.engines.scripted import ScriptedEngine
from rollstream.schemas.topics import WEIGHTS_APPLIED
from tests.harness.forking import run_words
from tests.harness.running import a_run


class _ChangingEngine(ScriptedEngine):
    """Somebody writes into the files that it loads."""

    async def load_weights(self, weight_version: int, path: Path) -> LoadReport:
        with (path / "model.safetensors").open("r+b") as stream:
            stream.write(b"W")
        return await super().load_weights(weight_version, path)


def _generator_whose_files_change(config: Path) -> None:
    import rollstream.engines.scripted

    rollstream.engines.scripted.ScriptedEngine = _ChangingEngine  # type: ignore[misc]  # what the stage builds
    run_words("generator", "--config", str(config))


def test_a_generator_whose_files_changed_under_the_load_ends_before_it_says_that_it_loaded_them(
    kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    with a_run(kafka, topic_prefix, tmp_path) as run:
        run.tables["generator"] = {}
        run.tables["generator.engine"] = {"kind": "scripted", "model_path": run.directory}
        run.publish_weights(0)
        generator = run.start_forked(partial(_generator_whose_files_change, run.config))
        assert generator.wait() == 70
        assert "model.safetensors was changed between the check of its sum and the end of its use" in generator.said()
        assert run.records(WEIGHTS_APPLIED) == []
