"""Loads a checkpoint into inference engines side by side. The HTTP of it is `engines/http/weights.py`.

An engine of one's own is any object with `async update_weights_from_checkpoint(path) -> dict`.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from pydantic import SecretStr, ValidationError

from rollstream.engines.http.settings import HttpSettings, WeightUpdates
from rollstream.engines.protocol import Engine
from rollstream.process.masking import SECRETS
from rollstream.process.terminal import escaped
from rollstream.schemas.errors import ConfigurationError

Answer = dict[str, Any]
"""`success`, True or False; if it is False, `error` says why. Servers tell `weight_version` and `stall_seconds` too."""
STEP_NAME: Final = re.compile(r"step_([0-9]{1,18})")
"""Of a checkpoint's directory."""
_MOST_CHARACTERS: Final = 500


class WeightEngine(Protocol):
    """What weights can be loaded into."""

    async def update_weights_from_checkpoint(self, checkpoint_path: str) -> Mapping[str, Any]:
        """Load the model directory at this path. Raises, or answers with `success` False, if it is not loaded."""
        ...


class _ServerEngine:
    """A server. `weight_version`: of the last checkpoint that it has loaded, to tag rollouts with; None at first."""

    _updates: WeightUpdates

    def __init__(self, url: str, *, api_key: str | None = None, timeout_seconds: float = 300.0) -> None:
        """`timeout_seconds`: how long each request of an update may take. Raises `ConfigurationError` for a bad URL."""
        if api_key is not None:
            SECRETS.add([api_key])
        try:
            self._settings = HttpSettings(
                urls=(url,),
                api_key=None if api_key is None else SecretStr(api_key),
                ready_seconds=timeout_seconds,
                weight_updates=self._updates,
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(f"the engine's {place}: {first['msg'].removeprefix('Value error, ')}") from error
        self.weight_version: int | None = None

    async def update_weights_from_checkpoint(
        self, checkpoint_path: str, *, weight_version: int | None = None
    ) -> Answer:
        """Have the server load a model directory, which it must see at the same path.

        The server is paused meanwhile; what it generates goes on. It is labeled with `weight_version`, by default N of
        a path that ends in `step_N`. Raises `ConfigurationError` if there is no such directory or number, or if the
        server can't be updated, and `EngineError` if it does not answer or does not load it.
        """
        from rollstream.engines.http.client import HttpClient
        from rollstream.engines.http.weights import ServerWeights

        path = Path(checkpoint_path).absolute()
        if not path.is_dir():
            raise ConfigurationError(f"there is no checkpoint {path}: name a directory that save_checkpoint wrote")
        version = step_of(path) if weight_version is None else weight_version
        client = HttpClient(self._settings)
        client.open()
        try:
            weights = ServerWeights(client, self._settings, version, path)
            stall_seconds = await weights.load_anew(client.pool.servers[0])
        finally:
            await client.close()
        self.weight_version = version
        return {"success": True, "weight_version": version, "stall_seconds": stall_seconds}


class SGLangEngine(_ServerEngine):
    """An SGLang server, which loads by `/update_weights_from_disk`."""

    _updates = "sglang"


class VLLMEngine(_ServerEngine):
    """A vLLM server that was started with VLLM_SERVER_DEV_MODE=1, which loads by `/collective_rpc`."""

    _updates = "vllm"


class InProcessEngine:
    """An engine of `rollstream.engines`, of whatever kind, once it is started."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.weight_version: int | None = None

    async def update_weights_from_checkpoint(
        self, checkpoint_path: str, *, weight_version: int | None = None
    ) -> Answer:
        """As servers do it. Raises `EngineError` if the files do not fit the model."""
        path = Path(checkpoint_path).absolute()
        version = step_of(path) if weight_version is None else weight_version
        report = await self._engine.load_weights(version, path)
        self.weight_version = version
        return {"success": True, "weight_version": version, "stall_seconds": report.stall_seconds}


async def sync_weights_to_engines(
    engines: Sequence[WeightEngine],
    checkpoint_path: str,
    *,
    weight_version: int | None = None,
    timeout_seconds: float = 600.0,
) -> list[Answer]:
    """Load a checkpoint into all engines side by side; their answers in the order of `engines`.

    An engine that raises, answers with anything but `success` True, or takes longer than `timeout_seconds`, is told in
    its answer; the others are loaded. `weight_version` is given on to the engines if it is not None.
    """
    labels = {} if weight_version is None else {"weight_version": weight_version}
    return await asyncio.gather(*(_answer(engine, checkpoint_path, labels, timeout_seconds) for engine in engines))


async def _answer(engine: WeightEngine, path: str, labels: Mapping[str, int], timeout_seconds: float) -> Answer:
    try:
        async with asyncio.timeout(timeout_seconds) as deadline:
            answer = await engine.update_weights_from_checkpoint(path, **labels)
    except Exception as error:  # noqa: BLE001 (an engine of a user's own may raise anything, and the others go on)
        is_late = f"it has not loaded {path} within {timeout_seconds:g} s"
        return _failed(is_late if deadline.expired() else f"{type(error).__name__}: {error}")
    if not isinstance(answer, Mapping):
        return _failed(f"it answered with a {type(answer).__name__} instead of a dict")
    if answer.get("success") is True:
        return dict(answer)
    return {**answer, **_failed(str(answer.get("error", "its answer has no success: True")))}


def _failed(reason: str) -> Answer:
    return {"success": False, "error": escaped(SECRETS.masked(reason))[:_MOST_CHARACTERS]}


def step_of(checkpoint: Path) -> int:
    """N of a directory `step_N`; raises `ConfigurationError` for another name."""
    found = STEP_NAME.fullmatch(checkpoint.name)
    if found is None:
        raise ConfigurationError(f"{checkpoint} is not named step_N: name it so, or give the weight_version")
    return int(found[1])
