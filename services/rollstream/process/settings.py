"""Settings that all stages of a run share; each stage has a subclass with its own.

One TOML file describes a run: shared keys at the top, `[kafka]`, and one table per stage. A table may set a shared key
for its stage alone, except the keys that bound the policy lag (`RUN_WIDE`).

Environment variables `ROLLSTREAM_<FIELD>` (nested: `ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS`) replace the file's values, in
every stage that has the field. A variable that no stage knows is refused.
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

from rollstream.process.declared import Declarations
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import checked_run

_LOG = logging.getLogger(__name__)
_PREFIX = "ROLLSTREAM_"
_CREDENTIALS = re.compile(r"://[^@/\"]*@")
RUN_FILE: Final = "rollstream.toml"
Stage = Literal["producer", "generator", "scorer", "trainer"]
# Named, not imported: this layer is below the stages. Their fields are only needed to explain an unknown variable.
STAGES: Final[dict[Stage, str]] = {
    "producer": "rollstream.producers.settings:ProducerSettings",
    "generator": "rollstream.generator.settings:GeneratorSettings",
    "scorer": "rollstream.scorer.settings:ScorerSettings",
    "trainer": "rollstream.trainer.settings:TrainerSettings",
}
# The shares of the producers and the bound on the lag are computed from these: all stages must have the same values.
RUN_WIDE: Final = ("groups_per_step", "max_policy_lag")
# Crash points and commands read these; they are no settings of a stage.
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
        others = [key for key in value if not key.startswith(("security.", "sasl.", "ssl.", "enable.ssl."))]
        if others:
            raise ValueError(f"{others} are not security settings; only security.*, sasl.* and ssl.* pass through")
        return value

    def client_config(self) -> dict[str, Any]:
        """The librdkafka settings that every client starts from."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **{key: value.get_secret_value() for key, value in self.security.items()},
        }


class StageSettings(BaseSettings):
    """What every stage needs to find its run and its part in it."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=_PREFIX, env_nested_delimiter="__", validate_default=True
    )
    table: ClassVar[str] = ""

    run: str = Field(description="Name: prefix of topics, consumer groups and transactional ids, [a-z0-9-]{1,60}")
    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="How to reach the cluster")
    registry_url: str | None = Field(
        default=None, pattern=r"^https?://", description="Confluent-compatible registry; default: packaged schemas"
    )
    redis_url: str | None = Field(
        default=None,
        pattern=r"^(redis|rediss|unix)://",
        description="Redis, for what may be lost; without it all goes on, but a poison record is started for ever",
    )
    weight_store: Path = Field(default=Path("weights"), description="Root directory of the weight versions")
    environments: Declarations = Field(
        default_factory=dict,
        description="Environments of your own and options of built-in ones, by the names that prompts carry; read "
        "where prompts are made and where answers are scored",
    )
    agents: Declarations = Field(
        default_factory=dict,
        description="Agents of your own, by the names that prompts carry; read by producers and generators",
    )
    groups_per_step: int = Field(default=8, ge=1, description="Groups in one optimizer step, in order of arrival")
    max_policy_lag: int = Field(
        default=4,
        ge=0,
        description="Most optimizer steps between the weights that sampled a token and those that train on it; a "
        "generator that is more steps behind the newest version takes no prompts",
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
        """The environment first, then the file: `load` passes the file's values as arguments."""
        return env_settings, init_settings

    @classmethod
    def load(cls, config: Path | None = None) -> Self:
        """Read the file and the environment; raises `ConfigurationError` that says what to change."""
        document = _document(config) if config else {}
        _refuse_run_wide_keys_in_tables(document, config)
        shared = {key: value for key, value in document.items() if key not in STAGES}
        own = document.get(cls.table, {}) if cls.table else {}
        if not isinstance(own, dict):
            raise ConfigurationError(
                f"{config}: {cls.table} must be a table: [{cls.table}], settings below; got {own!r}"
            )
        if cls.table:
            # Commands have no table. They may run where variables are set for a stage, so they check none.
            _refuse_unknown_environment(set(cls.model_fields))
        try:
            settings = cls(**{**shared, **own})
        except ValidationError as error:
            raise ConfigurationError(_explain(error, config, cls)) from error
        settings._document = document
        return settings

    def table_of(self, stage: Stage) -> dict[str, Any]:
        """The file's table of another stage, not validated, to warn of conflicting settings; empty if there is none."""
        table = self._document.get(stage)
        return table if isinstance(table, dict) else {}

    def log_resolved(self) -> None:
        """Log the settings as they apply, with secrets and the credentials in addresses masked."""
        resolved = _CREDENTIALS.sub("://***@", self.model_dump_json())
        _LOG.info("settings of %s: %s", self.table or "rollstream", resolved)


def _document(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {config}: {error.strerror}; name another file with --config") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both of this kind
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
        # All stages may be started with the same environment, so a field of another stage is no mistake.
        known = {known for stage in STAGES.values() for known in pkgutil.resolve_name(stage).model_fields}
        if field not in known:
            raise ConfigurationError(f"environment variable {name} names no setting{_nearest(field, known)}")


def _nearest(name: str, fields: set[str]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(fields))}"


def _explain(error: ValidationError, config: Path | None, settings: type[StageSettings]) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        if problem["type"] == "default_factory_not_called":  # the invalid field that it depends on is listed itself
            continue
        if not problem["loc"]:  # a rule about several fields; its message names them
            lines.append(problem["msg"].removeprefix("Value error, "))
            continue
        name = ".".join(str(part) for part in problem["loc"])
        value = "" if problem["type"] == "missing" else f", got {problem['input']!r}"
        hint = _nearest(name, set(settings.model_fields)) if problem["type"] == "extra_forbidden" else ""
        lines.append(f"{name}: {problem['msg']}{value}{hint}")
    return f"settings of {settings.table or 'rollstream'} ({config or 'environment'}): " + "; ".join(lines)
