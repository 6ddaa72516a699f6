"""An error of the settings names the line or the variable, the value, the bound, and the key that was meant."""

import os
from pathlib import Path

import pytest

from rollstream.engines.build import build_engine
from rollstream.engines.settings import EngineSettings
from rollstream.generator.settings import GeneratorSettings
from rollstream.process.settings.base import KafkaSettings, StageSettings
from rollstream.process.settings.run_file import RunFile
from rollstream.producers.settings import ProducerSettings
from rollstream.schemas.errors import ConfigurationError
from rollstream.scorer.settings import ScorerSettings
from rollstream.trainer.settings import TrainerSettings

FILE = """# a run
run = "demo"

[kafka]
bootstrap_servers = "broker:9092"
security = {
    "sasl.username" = "me" }

[producer]
environment = "sort_digits"

[trainer]
model_path = "model"
[trainer.learning]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollstream.toml"
    path.write_text(FILE.replace('{\n    "sasl.username" = "me" }', '{ "sasl.username" = "me" }'))
    return path


def refusal(settings: type[StageSettings], config: Path | None) -> str:
    with pytest.raises(ConfigurationError) as raised:
        settings.load(config)
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "line", "said"),
    [
        (ProducerSettings, '[kafka]\nbootstrap_server = "b:9092"', "line 3: kafka.bootstrap_server: no such key; did "
         "you mean bootstrap_servers?"),
        (ProducerSettings, "[generators]\n", "line 2: generators: no such key; did you mean generator?"),
        (StageSettings, "[generators]\n", "line 2: generators: no such key; did you mean generator?"),
        (StageSettings, "groups_per_stp = 3", "line 2: groups_per_stp: no such key; did you mean groups_per_step?"),
        (StageSettings, "num_steps = 3", "line 2: num_steps: no such key here; it belongs to [trainer]"),
        (TrainerSettings, '[trainer]\nmodel_path = "m"\nshare = 3', "line 4: trainer.share: no such key here; it "
         "belongs to [producer]"),
        (TrainerSettings, '[trainer]\nmodel_path = "m"\n[trainer.learning]\nlos = "grpo"', "line 5: "
         "trainer.learning.los: no such key; did you mean loss?"),
        (TrainerSettings, '[trainer]\nmodel_path = "m"\nlearning = [\n1,\n2 ]', "line 4: trainer.learning: must be"),
        (TrainerSettings, "[trainer]\n", "line 2: model_path is missing in [trainer] (Directory of the model"),
        (GeneratorSettings, "[generator.engine]\n", "line 2: model_path is missing in [generator.engine]"),
        (TrainerSettings, '[trainer]\nmodel_path = "m"\nlearning.clip_low = 3', "line 4: trainer.learning.clip_low: "
         "must be less than 1, got 3"),
        (TrainerSettings, '[trainer]\nmodel_path = "m"\nlearning.loss = "nll"', "line 4: trainer.learning: loss 'nll' "
         "imitates every sample"),
        (ScorerSettings, '[scorer]\nsample_deadline_seconds = "soon"', "line 3: scorer.sample_deadline_seconds: must be"
         " a valid number, unable to parse string as a number, got 'soon'"),
        (ProducerSettings, '[producer]\nenvironment = "x"\nseed = 1000000000000000000000', "line 4: producer.seed: "
         "does not fit into 64 bits; lower it"),
        (ScorerSettings, "[scorer]\nsample_deadline_seconds = nan", "line 3: scorer.sample_deadline_seconds: must be"),
        (GeneratorSettings, "[generator]\nsample_deadline_seconds = inf", "line 3: generator.sample_deadline_seconds: "
         "must be a finite number"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_told_with_its_line_and_what_was_meant(
    settings: type[StageSettings], line: str, said: str, tmp_path: Path
) -> None:
    config = tmp_path / "rollstream.toml"
    config.write_text(f'run = "demo"\n{line}\n')
    found = refusal(settings, config)
    assert f"rollstream.toml {said}" in found
    assert "Extra inputs" not in found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ROLLSTREAM_SHARE", "many", "must be a valid integer, unable to parse string as an integer, got 'many'"),
        ("ROLLSTREAM_GROUP_SIZE", "0", "must be greater than or equal to 1, got '0'"),
        ("ROLLSTREAM_KAFKA__BOOTSTRAP_SERVER", "b:9092", "names no setting; did you mean "
         "ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS?"),
        ("ROLLSTREAM_KAFKA__GROUP_PROTOCOL", "other", "must be 'consumer' or 'classic', got 'other'"),
        ("ROLLSTREAM_SHARE__X", "3", "names no setting; did you mean ROLLSTREAM_SHARE?"),
        ("ROLLSTREAM_SHAER", "3", "names no setting; did you mean ROLLSTREAM_SHARE?"),
        ("ROLLSTREAM_KAFKA", "{", "is not valid JSON (Expecting property name enclosed in double quotes, at character "
         "2): it stands for a whole table; correct it or set its keys one by one, as ROLLSTREAM_KAFKA__<KEY>"),
        ("ROLLSTREAM_SEED", "1" + "0" * 30, "does not fit into 64 bits; lower it"),
        ("ROLLSTREAM_RUN", "My run", "run 'My run' must match [a-z0-9-]{1,60}"),
    ],
)  # fmt: skip
def test_a_wrong_variable_is_blamed_and_not_the_file(
    name: str, value: str, said: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    found = refusal(ProducerSettings, config)
    assert f"environment variable {name}" in found
    assert said in found
    assert "rollstream.toml" not in found
    assert "Extra inputs" not in found


def test_without_a_file_the_variable_that_is_missing_is_named() -> None:
    assert "run is missing" in refusal(StageSettings, None)
    assert "or set ROLLSTREAM_RUN" in refusal(StageSettings, None)


def test_a_line_is_told_also_where_a_value_has_several_lines(config: Path) -> None:
    config.write_text('run = "demo"\n\nenvironments = { a = { "b.c" = """\n[kafka]\n""" } }\n[kafka]\nx = [\n1,\n]\n')
    file = RunFile.read(config)
    assert file.place_of(["environments", "a", "b.c"]).endswith("line 3")
    assert file.place_of(["kafka"]).endswith("line 6")
    assert file.place_of(["kafka", "x"]).endswith("line 7")
    assert file.place_of(["kafka", "absent"]).endswith("line 6")
    assert file.place_of(["absent"]) == str(config)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "no\0such"])
def test_what_is_no_file_is_refused_as_settings(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*; name another"):
        StageSettings.load(Path(path))


def test_a_pipe_is_read_as_settings_and_an_endless_one_is_refused(tmp_path: Path) -> None:
    given, taken = os.pipe()
    os.write(taken, b'\xef\xbb\xbfrun = "from-a-pipe"\n')
    os.close(taken)
    assert StageSettings.load(Path(f"/dev/fd/{given}")).run == "from-a-pipe"
    os.close(given)
    (tmp_path / "large.toml").write_bytes(b"# \n" * 2**19)
    with pytest.raises(ConfigurationError, match="more than 1048576 bytes"):
        StageSettings.load(tmp_path / "large.toml")


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(config: Path) -> None:
    config.write_bytes(b'run = "demo"\nmodel = "\xff"\n')
    with pytest.raises(ConfigurationError, match="line 2 is not UTF-8; save it as UTF-8"):
        StageSettings.load(config)


def test_a_protocol_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"):
        KafkaSettings(security={"security.protocol": "TLS"})  # type: ignore[dict-item]


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
