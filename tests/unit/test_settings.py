"""Settings come from one file and the environment; a wrong one is refused, and the error says what to change."""

import pkgutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollstream.generator.settings import GeneratorSettings
from rollstream.process.settings.base import STAGES, KafkaSettings, StageSettings
from rollstream.process.settings.declared import Declaration
from rollstream.producers.settings import ProducerSettings, idle_engine_warning
from rollstream.schemas.errors import ConfigurationError
from rollstream.scorer.settings import ScorerSettings
from rollstream.trainer.settings import TrainerSettings

FILE = """
run = "demo"
redis_url = "redis://user:hunter2@localhost/0"

[kafka]
bootstrap_servers = "broker:9092"
security = { "sasl.password" = "s3cret" }

[producer]
environment = "sort_digits"
share = 12
"""

LAG_FILE = """
run = "demo"
groups_per_step = 6
max_policy_lag = 2

[producer]
environment = "sort_digits"

[generator]
engine = { kind = "scripted", model_path = "model" }

[trainer]
model_path = "model"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rollstream.toml"
    path.write_text(FILE)
    return path


def test_a_stage_reads_the_shared_keys_and_its_own_table(config: Path) -> None:
    settings = ProducerSettings.load(config)
    assert (settings.run, settings.share, settings.kafka.bootstrap_servers) == ("demo", 12, "broker:9092")


def test_producer_and_scorer_read_the_same_options_of_an_environment(config: Path) -> None:
    config.write_text(FILE + '\n[environments.letters]\npath = "my.module.Task"\noptions = { length = "6" }\n')
    declared = {"letters": Declaration(path="my.module.Task", options={"length": "6"})}
    assert ProducerSettings.load(config).environments == ScorerSettings.load(config).environments == declared


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (
            '[environments."my.module.Task"]\nlength = "6"',
            r"'my.module.Task' must match \[A-Za-z0-9_-\]\{1,60\}: choose a",
        ),
        ('[environments.letters]\npath = "Task"', r"environments.letters.path: .*, got 'Task'"),
        ('[agents.debate]\nrounds = "2"', r"agents.debate.rounds: no such key; there are options, path"),
    ],
)
def test_a_declaration_of_another_form_is_refused(table: str, why: str, config: Path) -> None:
    config.write_text(f"{FILE}\n{table}\n")
    with pytest.raises(ConfigurationError, match=why):
        StageSettings.load(config)


def test_the_environment_wins_over_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_SHARE", "7")
    monkeypatch.setenv("ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS", "other:9092")
    settings = ProducerSettings.load(config)
    assert settings.share == 7
    assert settings.kafka.bootstrap_servers == "other:9092"


def test_brokers_are_named_with_their_ports() -> None:
    for servers in ("127.0.0.1:1", "a.b-c_d:9092, 10.0.0.1:65535", "[::1]:9092"):
        assert KafkaSettings(bootstrap_servers=servers).client_config()["bootstrap.servers"] == servers
    for servers in ("broker", "a:9092,b", "a:9092,", "a:0", "a:65536", "::1:9092", "a:9092/x", ""):
        with pytest.raises(ValidationError):
            KafkaSettings(bootstrap_servers=servers)


def test_an_unknown_variable_is_refused_for_a_stage_and_none_of_peoples_business(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLSTREAM_SHAER", "7")
    with pytest.raises(ConfigurationError, match=r"ROLLSTREAM_SHAER names no setting; did you mean ROLLSTREAM_SHARE\?"):
        ProducerSettings.load(config)
    assert StageSettings.load(config).run == "demo"


def test_a_variable_of_another_stage_is_let_pass(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_NUM_STEPS", "7")
    monkeypatch.setenv("ROLLSTREAM_ENGINE__KIND", "scripted")
    assert ProducerSettings.load(config).share == 12


def test_every_stage_is_listed_with_its_settings() -> None:
    assert {name: pkgutil.resolve_name(path).table for name, path in STAGES.items()} == {name: name for name in STAGES}


def test_share_trainer_and_generator_follow_from_the_two_shared_keys(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(LAG_FILE)
    assert ProducerSettings.load(config).share == (2 + 1) * 6
    assert (TrainerSettings.load(config).groups_per_step, TrainerSettings.load(config).max_policy_lag) == (6, 2)
    assert GeneratorSettings.load(config).max_policy_lag == 2
    monkeypatch.setenv("ROLLSTREAM_GROUPS_PER_STEP", "5")
    assert ProducerSettings.load(config).share == (2 + 1) * 5
    assert TrainerSettings.load(config).groups_per_step == 5


def test_the_default_share_is_what_the_defaults_of_the_shared_keys_allow(config: Path) -> None:
    config.write_text(FILE.replace("share = 12\n", ""))
    assert ProducerSettings.load(config).share == (4 + 1) * 8


def test_a_share_above_the_bound_is_refused_with_the_value_the_bound_and_what_to_change(config: Path) -> None:
    config.write_text(LAG_FILE.replace("[producer]", "[producer]\nshare = 18"))
    assert ProducerSettings.load(config).share == 18
    config.write_text(LAG_FILE.replace("[producer]", "[producer]\nshare = 19"))
    refusal = r"share 19 exceeds \(max_policy_lag 2 \+ 1\) x groups_per_step 6 = 18, .*: lower share, or raise "
    with pytest.raises(ConfigurationError, match=refusal):
        ProducerSettings.load(config)


def test_a_producer_that_does_not_train_uses_no_credit_so_its_share_has_no_bound(config: Path) -> None:
    config.write_text(LAG_FILE.replace("[producer]", '[producer]\nshare = 19\npurpose = "serve"\nnum_prompts = 50'))
    assert ProducerSettings.load(config).share == 19


def test_a_shared_value_out_of_bounds_is_named_once(config: Path) -> None:
    config.write_text(LAG_FILE.replace("groups_per_step = 6", "groups_per_step = 0"))
    with pytest.raises(ConfigurationError, match=r"toml line 3: groups_per_step: .*, got 0$"):
        ProducerSettings.load(config)


@pytest.mark.parametrize("settings", [ProducerSettings, GeneratorSettings, ScorerSettings, TrainerSettings])
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("trainer", "groups_per_step"),
        ("trainer", "max_policy_lag"),
        ("generator", "max_policy_lag"),
        ("producer", "ones_per_group"),
        ("trainer", "max_served_lag"),
    ],
)
def test_every_stage_refuses_a_table_that_sets_for_itself_what_holds_for_the_run(
    settings: type[StageSettings], table: str, key: str, config: Path
) -> None:
    config.write_text(LAG_FILE.replace(f"[{table}]", f"[{table}]\n{key} = 3"))
    where = rf"\[{table}\] {key} = 3: groups_per_step, max_policy_lag, .* hold for all stages .* at the top of the file"
    with pytest.raises(ConfigurationError, match=where):
        settings.load(config)


def test_a_share_that_cannot_fill_the_engine_is_warned_of(config: Path) -> None:
    assert idle_engine_warning(ProducerSettings.load(config)) is None
    config.write_text(FILE + '[generator.engine]\nmodel_path = "model"\nmax_num_seqs = 96\n')
    assert idle_engine_warning(ProducerSettings.load(config)) is None
    config.write_text(config.read_text().replace("96", "97"))
    assert "share 12 x group_size 8 = 96 samples" in (idle_engine_warning(ProducerSettings.load(config)) or "")


def test_of_an_engine_on_http_servers_the_connections_count_that_it_can_fill(config: Path) -> None:
    engine = '[generator.engine]\nkind = "openai_http"\nmax_num_seqs = 97\n'
    config.write_text(f"{FILE}{engine}http = {{ max_connections = 96 }}\n")
    assert idle_engine_warning(ProducerSettings.load(config)) is None
    config.write_text(f"{FILE}{engine}http = {{ max_connections = 97 }}\n")
    assert "or lower max_connections" in (idle_engine_warning(ProducerSettings.load(config)) or "")
    config.write_text(f"{FILE}{engine}")
    assert "the engine runs 128 side by side" in (idle_engine_warning(ProducerSettings.load(config)) or "")


@pytest.mark.parametrize("run", ["", "Upper", "with.dot", "x" * 61])
def test_a_run_name_that_topics_cannot_carry_is_refused_with_the_value_and_the_bound(run: str, config: Path) -> None:
    config.write_text(FILE.replace('run = "demo"', f'run = "{run}"'))
    with pytest.raises(ConfigurationError, match=r"must match \[a-z0-9-\]\{1,60\}"):
        ProducerSettings.load(config)


def test_a_missing_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        StageSettings.load(tmp_path / "absent.toml")
    for broken in (b"run = ", b'run = "\xff"'):
        (tmp_path / "broken.toml").write_bytes(broken)
        with pytest.raises(ConfigurationError, match="not valid TOML"):
            StageSettings.load(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('run = "demo"\nproducer = 3', "producer must be a table: .* got 3"),
        ('run = "demo"', r"toml: source=environment needs `environment`, e.g. environment = 'sort_digits'$"),
        ('run = "demo"\n[producer]\nenvironment = "sort_digits"\nshare = "many"', "share: .*integer.*, got 'many'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_what_it_is(content: str, why: str, config: Path) -> None:
    config.write_text(content)
    with pytest.raises(ConfigurationError, match=why):
        ProducerSettings.load(config)


def test_only_security_settings_pass_through_to_the_client() -> None:
    assert KafkaSettings(security={"sasl.password": "s3cret"}).client_config()["sasl.password"] == "s3cret"  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="not security settings"):
        KafkaSettings(security={"acks": "0"})  # type: ignore[dict-item]
