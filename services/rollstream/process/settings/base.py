"""Settings that all stages of a run share; each stage has a subclass with its own.

One TOML file describes a run: shared keys at the top, `[kafka]`, and one table per stage. A table may set a shared key
for its stage alone, except the keys that bound the policy lag (`RUN_WIDE`).

Environment variables `ROLLSTREAM_<FIELD>` (nested: `ROLLSTREAM_KAFKA__BOOTSTRAP_SERVERS`) replace the file's values, in
every stage that has the field. A variable that no stage knows is refused.
"""

import json
import logging
import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from rollstream.process.masking import SECRETS, secrets_in
from rollstream.process.settings.address import Address
from rollstream.process.settings.declared import Declarations
from rollstream.process.settings.errors import (
    PREFIX,
    Sources,
    bad_json,
    did_you_mean,
    explained,
    refusals,
    shown,
    variable_name,
)
from rollstream.process.settings.keys import key_at, keys_of
from rollstream.process.settings.run_file import RunFile
from rollstream.process.settings.storage import Location, StorageSettings
from rollstream.process.settings.tools import ToolTables
from rollstream.process.tracing.settings import TracingSettings
from rollstream.schemas.addresses import checked_address, checked_servers
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import checked_run

_LOG = logging.getLogger(__name__)
RUN_FILE: Final = "rollstream.toml"
Stage = Literal["producer", "ingest", "generator", "scorer", "trainer"]
# Named, not imported: this layer is below the stages. Their fields are only needed to explain what is wrong.
STAGES: Final[dict[Stage, str]] = {
    "producer": "rollstream.producers.settings:ProducerSettings",
    "ingest": "rollstream.ingest.settings:IngestSettings",
    "generator": "rollstream.generator.settings:GeneratorSettings",
    "scorer": "rollstream.scorer.settings:ScorerSettings",
    "trainer": "rollstream.trainer.settings:TrainerSettings",
}
# The shares of the producers and the bound on the lag are computed from these: all stages must have the same values.
RUN_WIDE: Final = ("groups_per_step", "max_policy_lag", "ones_per_group", "max_served_lag")
# Crash points and commands read these; they are no settings of a stage.
_OTHER_VARIABLES = frozenset({"ROLLSTREAM_CRASH_AT", "ROLLSTREAM_CONFIG"})
_MAY_HOLD_A_PASSWORD: Final[dict[str, JsonValue]] = {"writeOnly": True}
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class KafkaSettings(BaseModel):
    """How to reach the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bootstrap_servers: str = Field(
        default="127.0.0.1:9092",
        min_length=1,
        json_schema_extra=_MAY_HOLD_A_PASSWORD,
        description="host:port of one or more brokers, separated by commas",
    )
    group_protocol: Literal["consumer", "classic"] = Field(
        default="consumer", description="consumer is KIP-848 (brokers from 4.0); classic joins with cooperative-sticky"
    )
    linger_seconds: float = Field(
        default=0.08,
        ge=0,
        le=1,
        description="How long a published record waits for others to be sent with it: fewer requests, which cost every "
        "process time, and a later start of the next stage",
    )
    security: dict[str, SecretStr] = Field(
        default_factory=dict, description="librdkafka's security.*, sasl.* and ssl.* settings, passed through"
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        return checked_servers(value)

    @field_validator("security")
    @classmethod
    def _only_security(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        others = [key for key in value if not key.startswith(("security.", "sasl.", "ssl.", "enable.ssl."))]
        if others:
            raise ValueError(f"{others} are not security settings; only security.*, sasl.* and ssl.* pass through")
        protocol = value.get("security.protocol", SecretStr("PLAINTEXT")).get_secret_value()
        if protocol.upper() not in _PROTOCOLS:
            raise ValueError(f"security.protocol must be one of {', '.join(_PROTOCOLS)}")
        return value

    @field_validator("security", mode="before")
    @classmethod
    def _quoted_names(cls, value: Any) -> Any:
        # TOML makes tables of `sasl.password = …` without quotes.
        nested = [name for name, below in value.items() if isinstance(below, dict)] if isinstance(value, dict) else []
        if nested:
            raise ValueError(f'names with a dot stand in quotes, as "{nested[0]}.…" = …')
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
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )
    table: ClassVar[str] = ""

    run: str = Field(description="Name: prefix of topics, consumer groups and transactional ids, [a-z0-9-]{1,60}")
    kafka: KafkaSettings = Field(default_factory=KafkaSettings, description="How to reach the cluster")
    registry_url: Address | None = Field(
        default=None,
        description="Confluent-compatible registry, http:// or https://; default: packaged schemas",
    )
    redis_url: Address | None = Field(
        default=None,
        description="Redis, for what may be lost, redis://, rediss:// or unix://; without it all goes on, but a poison "
        "record is started for ever",
    )
    weight_store: Location = Field(
        default="weights",
        description="Where the weight versions are: a directory, or file:///path, s3://bucket/prefix, gs:// or az://",
    )
    storage: StorageSettings = Field(
        default_factory=StorageSettings, description="How to reach an object store, and copies of what lies there"
    )
    tracing: TracingSettings = Field(
        default_factory=TracingSettings,
        description="Where spans of each record's way through the stages go, if anywhere",
    )
    environments: Declarations = Field(
        default_factory=dict,
        description="Environments of your own and options of built-in ones, by the names that prompts carry; read "
        "where prompts are made and where answers are scored",
    )
    agents: Declarations = Field(
        default_factory=dict,
        description="Agents of your own, by the names that prompts carry; read by producers and generators",
    )
    tools: ToolTables = Field(
        default_factory=dict,
        description="Sets of tools that agents may call, by the names that prompts carry; read by generators",
    )
    groups_per_step: int = Field(default=8, ge=1, description="Groups in one optimizer step, in order of arrival")
    max_policy_lag: int = Field(
        default=4,
        ge=0,
        json_schema_extra={"unit": "steps"},
        description="Most optimizer steps between the weights that sampled a token and those that train on it; a "
        "generator that is more steps behind the newest version takes no prompts",
    )
    ones_per_group: int = Field(
        default=8,
        ge=1,
        le=1024,
        json_schema_extra={"unit": "groups"},
        description="So many groups of one sample count as one group, in a step and in a producer's share",
    )
    max_served_lag: int = Field(
        default=64,
        ge=0,
        json_schema_extra={"unit": "steps"},
        description="max_policy_lag of answers to clients, which wait for feedback",
    )
    model: str = Field(default="policy", description="Name of the model, key of its weight versions")
    health_host: str = Field(
        default="0.0.0.0",
        min_length=1,
        max_length=255,
        description="Address to serve /metrics, /livez, /readyz at; 0.0.0.0 or :: (IPv6): at all that the machine has",
    )
    health_port: int = Field(default=0, ge=0, le=65535, description="Their port; 0 takes a free one")
    _file: RunFile = PrivateAttr(default_factory=RunFile)

    @field_validator("run")
    @classmethod
    def _run(cls, value: str) -> str:
        return checked_run(value)

    @field_validator("registry_url")
    @classmethod
    def _registry_url(cls, value: Address | None) -> Address | None:
        return _checked(value, "http", "https")

    @field_validator("redis_url")
    @classmethod
    def _redis_url(cls, value: Address | None) -> Address | None:
        return _checked(value, "redis", "rediss", "unix")

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
        file = RunFile.read(config) if config else RunFile()
        settings, problems = cls.checked(file)
        if settings is None:
            raise ConfigurationError(f"settings of {cls.table or 'rollstream'}: {'; '.join(problems)}")
        return settings

    @classmethod
    def checked(cls, file: RunFile) -> tuple[Self | None, tuple[str, ...]]:
        """The settings, or None and what is wrong with them, one sentence each; no sentence holds a secret."""
        problems = [*_misplaced(file, cls.table), *_unknown_variables(cls)]
        if problems:
            return None, tuple(problems)
        shared = {key: value for key, value in file.document.items() if key not in STAGES}
        try:
            settings = cls(**{**shared, **_own_table(cls, file)})
        except ValidationError as error:
            return None, tuple(explained(error, cls, cls.sources(file)))
        except SettingsError:
            return None, tuple(bad_json(cls)) or (f"an environment variable {PREFIX}… can't be read",)
        settings._file = file
        values = settings.model_dump()
        SECRETS.add(secrets_in(values))
        problems = list(refusals(values, cls.sources(file)))
        return (None, tuple(problems)) if problems else (settings, ())

    @classmethod
    def sources(cls, file: RunFile) -> Sources:
        """Where the values come from, to blame what is wrong."""
        return Sources(
            file=file,
            table=cls.table,
            own=_own_table(cls, file),
            environment=EnvSettingsSource(cls)(),
            tables=key_tables(),
        )

    def table_of(self, stage: Stage) -> dict[str, Any]:
        """The file's table of another stage, not validated, to warn of conflicting settings; empty if there is none."""
        table = self._file.document.get(stage)
        return table if isinstance(table, dict) else {}

    def resolved(self) -> dict[str, Any]:
        """The settings as they apply, as JSON types, without secrets, and without the passwords of addresses."""
        return self.model_dump(mode="json")

    def log_resolved(self) -> None:
        """Log the settings as they apply, without secrets."""
        _LOG.info("settings of %s: %s", self.table or "rollstream", json.dumps(self.resolved(), separators=(",", ":")))


def _checked(address: Address | None, *schemes: str) -> Address | None:
    if address is not None:
        checked_address(address.get_secret_value(), *schemes)
    return address


def settings_class(stage: Stage) -> type[StageSettings]:
    found: type[StageSettings] = pkgutil.resolve_name(STAGES[stage])
    return found


def key_tables() -> dict[str, list[str]]:
    """The names of the keys of each table of the file; the shared keys' table is called ""."""
    shared = list(StageSettings.model_fields)
    tables = {"": shared}
    for stage in STAGES:
        tables[stage] = [name for name in settings_class(stage).model_fields if name not in shared]
    return tables


def _own_table(cls: type[StageSettings], file: RunFile) -> dict[str, Any]:
    own = file.document.get(cls.table, {}) if cls.table else {}
    return own if isinstance(own, dict) else {}


def _misplaced(file: RunFile, table: str) -> Iterator[str]:
    """Keys that bound the lag in a stage's table, and a value where the stage's table should be."""
    for stage in STAGES:
        found = file.document.get(stage, {})
        for key in RUN_WIDE if isinstance(found, dict) else ():
            if key in found:
                yield (
                    f"{file.place_of([stage, key])}: [{stage}] {key} = {shown(found[key])}: {', '.join(RUN_WIDE)} "
                    "hold for all stages of a run; set each once, at the top of the file, above its first table"
                )
        if stage == table and not isinstance(found, dict):
            got = "a text" if isinstance(found, str) else shown(found)
            yield f"{file.place_of([stage])}: {stage} must be a table: [{stage}], settings below; got {got}"


def _unknown_variables(cls: type[StageSettings]) -> Iterator[str]:
    if not cls.table:
        return  # Commands have no table. They may run where variables are set for a stage, so they check none.
    for name in os.environ:
        if not name.startswith(PREFIX) or name in _OTHER_VARIABLES:
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        # All stages may be started with the same environment, so a field of another stage is no mistake.
        known = (
            cls.model_fields if path[0] in cls.model_fields else {key for keys in key_tables().values() for key in keys}
        )
        if path[0] not in known:
            meant = did_you_mean(name, [variable_name([key]) for key in known])
            yield f"environment variable {name} names no setting; {meant}"
        elif path[1:] and known is cls.model_fields and key_at(keys_of(cls), path) is None:
            # The library would pass over what is below a field that is no table.
            below = [variable_name(key.path) for key in keys_of(cls) if key.path[0] == path[0]]
            yield f"environment variable {name} names no setting; {did_you_mean(name, below)}"
