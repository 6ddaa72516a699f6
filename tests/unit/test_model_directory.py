"""Which weight versions fit a running model, told by the names and shapes of their tensors."""

import json
from pathlib import Path

import pytest

from rollstream.engines.model_directory import refuse_misfit, refuse_undivided
from rollstream.schemas.errors import ConfigurationError, EngineError

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


def write_config(path: Path, **sizes: int) -> Path:
    (path / "config.json").write_text(json.dumps({"num_attention_heads": 12, "intermediate_size": 96} | sizes))
    return path


@pytest.mark.parametrize(
    ("sizes", "tensor_parallel_size"),
    [
        *(({}, size) for size in (1, 2, 3, 4, 6, 12)),
        # Each GPU has some of the vocabulary.
        ({"vocab_size": 97}, 4),
        ({"vocab_size": 150}, 3),
        ({"vocab_size": 1}, 1),
        # Fewer key and value heads than GPUs are copied.
        ({"num_key_value_heads": 2}, 4),
        ({"num_key_value_heads": 4}, 4),
    ],
)
def test_gpus_that_divide_the_model_are_taken(sizes: dict[str, int], tensor_parallel_size: int, tmp_path: Path) -> None:
    refuse_undivided(write_config(tmp_path, **sizes), tensor_parallel_size)


@pytest.mark.parametrize(
    ("sizes", "tensor_parallel_size", "said"),
    [
        ({}, 8, "tensor_parallel_size 8 does not divide num_attention_heads 12"),
        ({"num_key_value_heads": 4}, 6, "tensor_parallel_size 6 does not divide num_key_value_heads 4"),
        ({"num_key_value_heads": 6}, 4, "tensor_parallel_size 4 does not divide num_key_value_heads 6"),
        ({"intermediate_size": 100}, 3, "tensor_parallel_size 3 does not divide intermediate_size 100"),
        ({"vocab_size": 65}, 3, "tensor_parallel_size 3 does not divide vocab_size 65 of .* pads it to 128 rows"),
        ({"vocab_size": 96}, 4, "tensor_parallel_size 4 does not divide vocab_size 96 of .* pads it to 128 rows"),
    ],
)
def test_gpus_that_do_not_divide_the_model_are_refused(
    sizes: dict[str, int], tensor_parallel_size: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        refuse_undivided(write_config(tmp_path, **sizes), tensor_parallel_size)


def test_the_heads_of_a_model_that_also_takes_images_are_those_of_its_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_attention_heads": 9}}))
    with pytest.raises(ConfigurationError, match="does not divide num_attention_heads 9"):
        refuse_undivided(tmp_path, 2)
