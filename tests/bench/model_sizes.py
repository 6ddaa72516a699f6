"""The models that benches measure with."""

from typing import Final, TypedDict


class ModelSize(TypedDict):
    """Width, depth, heads and width of the feed-forward layers."""

    hidden: int
    layers: int
    heads: int
    ffn: int


MODEL_SIZES: Final[dict[str, ModelSize]] = {
    "demo": {"hidden": 128, "layers": 4, "heads": 4, "ffn": 512},
    "10m": {"hidden": 384, "layers": 6, "heads": 6, "ffn": 1024},
}
"""The models of the benchmarks: the demo's, with 1.06 M parameters, and one with 10 M."""
