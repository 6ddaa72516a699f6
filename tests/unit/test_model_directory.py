"""Which weight versions fit a running model, told by the names and shapes of their tensors."""

from pathlib import Path

import pytest

from rollstream.engines.model_directory import refuse_misfit
from rollstream.schemas.errors import EngineError

LEARNED = {"model.embed_tokens.weight": (64, 8), "model.layers.0.mlp.up_proj.weight": (32, 8)}
COMPUTED = {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}


@pytest.mark.parametrize(("found", "wanted"), [(LEARNED, LEARNED | COMPUTED), (LEARNED | COMPUTED, LEARNED)])
def test_a_table_that_the_model_computes_may_be_in_the_base_or_in_the_version_alone(
    found: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> None:
    refuse_misfit(Path("4-abc"), found, wanted, is_tied=True)


def test_a_learned_tensor_that_is_missing_strange_or_of_another_shape_is_refused() -> None:
    short = {"model.embed_tokens.weight": (64, 9), "model.norm.weight": (8,)}
    with pytest.raises(
        EngineError, match=r"1 tensors missing .*up_proj.* 1 unknown .*norm.* 1 of another shape .*embed"
    ):
        refuse_misfit(Path("4-abc"), short, LEARNED, is_tied=True)


def test_only_a_tied_output_head_may_be_missing() -> None:
    untied = LEARNED | {"lm_head.weight": (64, 8)}
    refuse_misfit(Path("4-abc"), LEARNED, untied, is_tied=True)
    with pytest.raises(EngineError, match="1 tensors missing"):
        refuse_misfit(Path("4-abc"), LEARNED, untied, is_tied=False)
