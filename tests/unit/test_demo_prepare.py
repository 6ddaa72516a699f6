"""The demo's model before its warm-up: made once per user, and it fits the model that is trained."""

from pathlib import Path

import pytest

from rollstream.engines.identity import chat_template_sha256, tokenizer_sha256
from rollstream.engines.model_directory import tensor_shapes
from rollstream.local.demo.prepare import untrained_directory, untrained_model
from rollstream.local.tiny_model import write_tiny_model


def test_the_untrained_model_is_not_made_again_and_fits_the_one_that_is_warmed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # As the first demo does, but here: a process of its own would import torch for seconds.
    write_tiny_model(untrained_directory(), seed=0)
    made_at = untrained_directory().stat().st_mtime_ns
    untrained = untrained_model()
    assert untrained.stat().st_mtime_ns == made_at
    assert list(untrained.parent.iterdir()) == [untrained]
    # What the warm-up starts from.
    write_tiny_model(tmp_path / "model", seed=1)
    for of in (tensor_shapes, tokenizer_sha256, chat_template_sha256):
        assert of(untrained) == of(tmp_path / "model")
