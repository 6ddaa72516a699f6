"""A trainer whose weights and checkpoints lie in an object store that refuses for a moment what it allowed before."""

from pathlib import Path

import pytest

from rollstream.schemas.topics import WEIGHTS
from tests.harness.running import Run
from tests.harness.small_s3 import SKEWED, a_small_s3
from tests.harness.trainer_runs import Start, configure, scored_groups, survivors


@pytest.mark.parametrize("refused", ["/weights/0-", "/checkpoints/1-"])
def test_a_store_that_let_the_trainer_in_and_then_refuses_it_is_ridden_out_from_the_first_request_on(
    run: Run, start: Start, tmp_path: Path, refused: str
) -> None:
    """Between the look at the store and the first use of it the model is loaded, which may take minutes."""
    with a_small_s3() as s3:
        storage = s3.storage(tmp_path / "cache", outage_seconds=30)
        options = {name: value.get_secret_value() for name, value in storage.options.items()}
        run.shared["weight_store"] = "s3://bucket/weights"
        run.tables["storage"] = {"cache": storage.cache, "allow_http": True, "outage_seconds": 30, "options": options}
        configure(run, checkpoints="s3://bucket/checkpoints", num_steps=1)
        s3.refused_paths, s3.refusals = refused, 2
        trainer = start()
        scored_groups(run, 2)
        assert trainer.wait() == 0, trainer.said()
        assert (survivors(run).step, s3.refused) == (1, 2)
        assert SKEWED in trainer.said()
        assert run.records(WEIGHTS)[0].uri.startswith("s3://bucket/weights/0-")
