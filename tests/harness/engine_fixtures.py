"""Models and engines that the engine tests share. Each engine starts once in a test run, when it is first asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollstream.engines.settings import EngineSettings, ScriptedSettings
from tests.harness.engine_host import EngineHost, EngineNursery

MAX_MODEL_LEN = 320
# Fewer than most tests ask at a time: the others wait, also while weights are replaced.
MAX_NUM_SEQS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoVersions:
    """Directories of two models with the same shapes and unrelated weights."""

    old: Path
    new: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Tiny models with tied and untied embeddings."""

    tied: TwoVersions
    untied: TwoVersions


class EngineHosts:
    """One host per name, started by the first `get`: vLLM's start computes, so two at a time would take twice as long.

    They run without compilation, which starts faster. A name that ends in `-compiled` runs as generators do by default,
    and one that ends in `-divided` in two processes, each with a half of the model.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._hosts: dict[str, EngineHost] = {}
        self.nursery = EngineNursery()

    def get(self, name: str) -> EngineHost:
        """The host of this name: `<engine>-<tied or untied>-<keep or recompute>[-compiled|-divided]`, or `scripted`."""
        if name not in self._hosts:
            self._hosts[name] = self.start(name)
        return self._hosts[name]

    def start(self, name: str, **changes: Any) -> EngineHost:
        """A host of this name for the caller alone, who ends it; its engine is only starting yet.

        `changes`: what differs from its usual settings.
        """
        return EngineHost(self.settings(name).model_copy(update=changes), self.nursery)

    def close(self, name: str) -> None:
        """End a host; the next `get` starts a fresh one."""
        self._hosts.pop(name).close()

    def close_all(self) -> None:
        """End every host, and what they were forked from."""
        for name in list(self._hosts):
            self.close(name)
        self.nursery.close()

    def versions(self, name: str) -> TwoVersions:
        """The models that a host switches between."""
        return self._models.untied if "-untied" in name else self._models.tied

    def settings(self, name: str) -> EngineSettings:
        """The settings that a host of this name has."""
        kind, _, rest = name.partition("-")
        return EngineSettings(
            kind=kind,
            model_path=self.versions(name).old,
            kv_after_update="recompute" if "recompute" in rest else "keep",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            kv_cache_bytes=2**26,
            enforce_eager=not rest.endswith("compiled"),
            tensor_parallel_size=2 if rest.endswith("divided") else 1,
            max_num_batched_tokens=512 if rest.endswith("divided") else None,
            gpu_memory_utilization=0.375 if rest.endswith("divided") else None,
            vllm_metrics="keep" in rest,
            scripted=ScriptedSettings(token_seconds=0.002),
        )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The tiny models, written once."""
    root = tmp_path_factory.mktemp("models")
    return Models(tied=_two_versions(root / "tied", is_tied=True), untied=_two_versions(root / "untied", is_tied=False))


@pytest.fixture(scope="session")
def engine_hosts(models: Models) -> Iterator[EngineHosts]:
    """The engines, each in a process of its own."""
    hosts = EngineHosts(models)
    yield hosts
    hosts.close_all()


def _two_versions(root: Path, *, is_tied: bool) -> TwoVersions:
    versions = TwoVersions(old=root / "old", new=root / "new")
    _write_uneven_model(versions.old, seed=1, is_tied=is_tied)
    _write_uneven_model(versions.new, seed=2, is_tied=is_tied)
    return versions


def _write_uneven_model(path: Path, *, seed: int, is_tied: bool) -> None:
    """A tiny model whose random weights are larger, so that its distributions are as uneven as a trained model's."""
    from safetensors.numpy import load_file, save_file

    from rollstream.local.tiny_model import write_tiny_model

    write_tiny_model(path, seed=seed, tie_word_embeddings=is_tied)
    tensors = load_file(path / "model.safetensors")
    uneven = {name: tensor * 4 if tensor.ndim == 2 else tensor for name, tensor in tensors.items()}
    save_file(uneven, path / "model.safetensors", metadata={"format": "pt"})
