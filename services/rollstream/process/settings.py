"""Settings that every stage shares; each stage adds its own class on top.

One TOML file describes a run: shared keys at the top, `[kafka]`, and one table per stage. A table may set a shared key
for its stage alone, but not what bounds the lag (`RUN_WIDE`). Environment variables `ROLLSTREAM_<FIELD>` (nested:
`ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS`) win over the file, in every stage that has the field; a variable that no stage
knows is refused.
"""

import difflib
import logging
import os
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import checked_run

_LOG = logging.getLogger(__name__)
_PREFIX = "ROLLSTREAM_"
_CREDENTIALS = re.compile(r"://[^@/\"]*@")
RUN_FILE: Final = "rollstream.toml"
Stage = Literal["producer", "generator", "scorer", "trainer"]
# By name: the bus is below the stages, and only a variable that one stage lacks asks for the others' fields.
STAGES: Final[dict[Stage, str]] = {
    "producer": "rollstream.producers.settings:ProducerSettings",
    "generator": "rollstream.generator.settings:GeneratorSettings",
    "scorer": "rollstream.scorer.settings:ScorerSettings",
    "trainer": "rollstream.trainer.settings:TrainerSettings",
}
RUN_WIDE: Final = ("groups_per_step", "max_policy_lag")
# Read by the tests' crash points and by the people's commands, not by a stage's settings.
_OTHER_VARIABLES = frozenset({"ROLLSTREAM_CRASH_AT", "ROLLSTREAM_CONFIG"})


class KafkaSettings(BaseModel):
    """How to reach the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_servers: str = Field(default="127.0.0.1:9092", description="host:port of one or more brokers")
    group_protocol: Literal["consumer", "classic"] = Field(
        default="consumer", description="consumer is KIP-848 (brokers from 4.0); classic joins with cooperative-sticky"
    )
    security: dict[str, SecretStr] = Field(
        default_factory=dict, description="librdkafka's security.*, sasl.* and ssl.* settings, passed through"
    )

    @field_validator("security")
    @classmethod
    def _only_security(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        strangers = [key for key in value if not key.startswith(("security.", "sasl.", "ssl.", "enable.ssl."))]
        if strangers:
            raise ValueError(f"{strangers} are not security settings; only security.*, sasl.* and ssl.* pass through")
        return value

    def client_config(self) -> dict[str, Any]:
        """The librdkafka settings that every client starts from."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **{key: value.get_secret_value() for key, value in self.security.items()},
        }


class StageSettings(BaseSettings):
    """What every stage needs to find its run."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=_PREFIX, env_nested_delimiter="__", validate_default=True
    )
    table: ClassVar[str] = ""

    run: str = Field(description="Name of the run: prefix of topics, groups and transactional ids, [a-z0-9-]{1,60}")
    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="How to reach the cluster")
    registry_url: str | None = Field(
        default=None, pattern=r"^https?://", description="Confluent-compatible registry; default: packaged schemas"
    )
    redis_url: str | None = Field(
        default=None,
        pattern=r"^(redis|rediss|unix)://",
        description="Redis, for what may be lost; without it all goes on, but a record that kills is started for ever",
    )
    weight_store: Path = Field(default=Path("weights"), description="Root directory of the weight versions")
    environments: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="Options of environments, by the name that prompts carry; for who poses their tasks and who scores",
    )
    groups_per_step: int = Field(default=8, ge=1, description="Groups in one optimizer step, in order of arrival")
    max_policy_lag: int = Field(
        default=4,
        ge=0,
        description="Optimizer steps that a sample's oldest weights may be behind when it is trained on; a generator "
        "that is further behind the newest version takes no prompts",
    )
    model: str = Field(default="policy", description="Name of the model, key of its weight versions")
    health_port: int = Field(
        default=0, ge=0, le=65535, description="Port of /metrics, /livez, /readyz; 0 takes a free one"
    )
    _document: dict[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("run")
    @classmethod
    def _run(cls, value: str) -> str:
        return checked_run(value)

    @property
    def max_open_groups(self) -> int:
        """Most groups that all producers of training prompts together may have open; this bounds the lag."""
        return (self.max_policy_lag + 1) * self.groups_per_step

    @classmethod
    def settings_customise_sources(  # the library's signature
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file: what `load` passes comes from the file."""
        return env_settings, init_settings

    @classmethod
    def load(cls, config: Path | None = None) -> Self:
        """Read the file and the environment; raises `ConfigurationError` naming the key, the bound and the mend."""
        document = _document(config) if config else {}
        _refuse_run_wide_keys_in_tables(document, config)
        shared = {key: value for key, value in document.items() if key not in STAGES}
        own = document.get(cls.table, {}) if cls.table else {}
        if not isinstance(own, dict):
            raise ConfigurationError(
                f"{config}: {cls.table} must be a table: [{cls.table}], settings below; got {own!r}"
            )
        if cls.table:
            # People's commands run beside stages, whose variables are none of their business.
            _refuse_unknown_environment(set(cls.model_fields))
        try:
            settings = cls(**{**shared, **own})
        except ValidationError as error:
            raise ConfigurationError(_explain(error, config, cls)) from error
        settings._document = document
        return settings

    def table_of(self, stage: Stage) -> dict[str, Any]:
        """What the file says of another stage, unchecked, for warnings of what does not fit together; maybe nothing."""
        table = self._document.get(stage)
        return table if isinstance(table, dict) else {}

    def log_resolved(self) -> None:
        """Log what is in force, secrets and the credentials in addresses masked."""
        resolved = _CREDENTIALS.sub("://***@", self.model_dump_json())
        _LOG.info("settings of %s: %s", self.table or "rollstream", resolved)


def _document(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {config}: {error.strerror}; name another file with --config") from error
    except ValueError as error:  # of the text or of its encoding
        raise ConfigurationError(f"{config} is not valid TOML: {error}") from error


def _refuse_run_wide_keys_in_tables(document: dict[str, Any], config: Path | None) -> None:
    tables = {stage: document[stage] for stage in STAGES if isinstance(document.get(stage), dict)}
    found = [f"[{stage}] {key} = {table[key]!r}" for stage, table in tables.items() for key in RUN_WIDE if key in table]
    if found:
        raise ConfigurationError(
            f"{config}: {', '.join(found)}: {' and '.join(RUN_WIDE)} hold for all stages of a run; set each once, "
            "at the top of the file, above its first table"
        )


def _refuse_unknown_environment(fields: set[str]) -> None:
    for name in os.environ:
        if not name.startswith(_PREFIX) or name in _OTHER_VARIABLES:
            continue
        field = name.removeprefix(_PREFIX).split("__")[0].lower()
        if field in fields:
            continue
        # One environment is handed to all stages, so another stage's field is no mistake.
        known = {known for stage in STAGES.values() for known in pkgutil.resolve_name(stage).model_fields}
        if field not in known:
            raise ConfigurationError(f"environment variable {name} names no setting{_nearest(field, known)}")


def _nearest(name: str, fields: set[str]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(fields))}"


def _explain(error: ValidationError, config: Path | None, settings: type[StageSettings]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        if problem["type"] == "default_factory_not_called":  # the field that it follows from is named by itself
            continue
        if not problem["loc"]:  # what several fields together must be; the message names them
            lines.append(problem["msg"].removeprefix("Value error, "))
            continue
        name = ".".join(str(part) for part in problem["loc"])
        value = "" if problem["type"] == "missing" else f", got {problem['input']!r}"
        hint = _nearest(name, set(settings.model_fields)) if problem["type"] == "extra_forbidden" else ""
        lines.append(f"{name}: {problem['msg']}{value}{hint}")
    return f"settings of {settings.table or 'rollstream'} ({config or 'environment'}): " + "; ".join(lines)
