"""What settings of an engine contradict each other, said before anything is started."""

from pathlib import Path

import pytest

from rollstream.engines.build import build_engine
from rollstream.engines.settings import EngineSettings
from rollstream.generator.settings import GeneratorSettings
from rollstream.schemas.errors import ConfigurationError

MODEL = 'run = "demo"\n[generator.engine]\nmodel_path = "start"\n'
NODES = "[generator.engine.nodes]\n"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            'kind = "scripted"\ntensor_parallel_size = 2\n',
            "tensor_parallel_size 2 is for kind 'vllm', but kind is 'scri",
        ),
        ("tensor_parallel_size = 0\n", "must be greater than or equal to 1, got 0"),
        ("tensor_parallel_size = 65\n", "must be less than or equal to 64, got 65"),
        ("max_num_batched_tokens = 100\n", "max_num_batched_tokens 100 is below max_num_seqs 256"),
        ("gpu_memory_utilization = 0.0\n", "must be greater than 0, got 0.0"),
        ("gpu_memory_utilization = 90\n", "must be less than or equal to 1, got 90"),
        (f"tensor_parallel_size = 4\n{NODES}count = 3\n", "nodes.count 3 does not divide tensor_parallel_size 4"),
        (f"{NODES}count = 2\n", "nodes.count 2 does not divide tensor_parallel_size 1"),
        (
            f"tensor_parallel_size = 4\n{NODES}count = 2\nrank = 2\n",
            "rank 2 is none of 2 machines: they have the ranks",
        ),
    ],
)
def test_a_contradiction_is_refused_with_the_values_and_the_bound(lines: str, said: str, tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(MODEL + lines)
    with pytest.raises(ConfigurationError) as refused:
        GeneratorSettings.load(config)
    assert said in str(refused.value)


def test_machines_that_can_not_read_the_same_files_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "rollstream.toml"
    both = f"{MODEL}tensor_parallel_size = 4\n{NODES}count = 2\n"
    config.write_text(both)
    assert GeneratorSettings.load(config).engine.nodes.count == 2
    config.write_text(f'weight_store = "s3://bucket/weights"\n{both}')
    with pytest.raises(ConfigurationError, match=r"engine\.nodes\.count 2 with a weight_store in an object store"):
        GeneratorSettings.load(config)
    config.write_text(f'weight_store = "s3://bucket/weights"\n{MODEL}tensor_parallel_size = 4\n')
    assert GeneratorSettings.load(config).engine.tensor_parallel_size == 4


def test_an_engine_for_more_gpus_than_the_model_has_heads_is_refused_before_vllm_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 6}')
    with pytest.raises(ConfigurationError, match="tensor_parallel_size 4 does not divide num_attention_heads 6"):
        build_engine(EngineSettings(model_path=tmp_path, tensor_parallel_size=4))
