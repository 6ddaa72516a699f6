"""Colors the text of an answer: each weight version that sampled tokens of it has its own color."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.text import Text

from rollstream.engines.identity import tokenizer_sha256
from rollstream.process.terminal import escaped
from rollstream.schemas.rollout import RolloutGenerated, Turn

Detokenize = Callable[[npt.NDArray[np.int32]], str]

_PALETTE: Final = ("green", "cyan", "magenta", "yellow", "blue", "red")


class VersionColors:
    """Gives each weight version a color, in the order in which the versions appear.

    If several versions sampled an answer, the generator's tokenizer is needed to find where in the text their spans
    begin. Without it (another machine, another tokenizer) the answer has no color, and its spans are listed.
    """

    def __init__(self, model_path: Path | None) -> None:
        """`model_path`: the directory of the generator's model, None if it is not known here."""
        self._model_path = model_path
        self._colors: dict[int, str] = {}
        self._detokenizers: dict[str, Detokenize | None] = {}

    def answer(self, rollout: RolloutGenerated) -> Text:
        """The text of the turns, colored."""
        text = Text()
        for turn in rollout.turns:
            text.append_text(self._turn(turn, rollout.generator.tokenizer_sha256))
        return text

    def legend(self) -> Text:
        """Which color is which version."""
        return Text(", ").join(Text(f"version {version}", style=color) for version, color in self._colors.items())

    def _turn(self, turn: Turn, tokenizer: str) -> Text:
        styles = [self._color(span.weight_version) for span in turn.weight_spans]
        if len(styles) <= 1:
            return Text(_shown(turn.text), style=styles[0] if styles else "")
        pieces = _pieces(turn, self._detokenizer(tokenizer))
        if pieces is None:
            spans = ", ".join(f"version {s.weight_version} tokens {s.start} to {s.end}" for s in turn.weight_spans)
            return Text(f"{_shown(turn.text)} ({spans})")
        return Text.assemble(*zip(map(_shown, pieces), styles, strict=True))

    def _color(self, version: int) -> str:
        return self._colors.setdefault(version, _PALETTE[len(self._colors) % len(_PALETTE)])

    def _detokenizer(self, sha256: str) -> Detokenize | None:
        if sha256 not in self._detokenizers:
            self._detokenizers[sha256] = _load_detokenizer(self._model_path, sha256)
        return self._detokenizers[sha256]


def _shown(text: str) -> str:
    return escaped(text, keep="\n\t")


def _pieces(turn: Turn, detokenize: Detokenize | None) -> list[str] | None:
    """The text, cut at the spans' ends. None if it is not known where in the text they are."""
    if detokenize is None or detokenize(turn.token_ids) != turn.text:
        return None
    ends = [len(detokenize(turn.token_ids[: span.end])) for span in turn.weight_spans]
    return [turn.text[start:end] for start, end in pairwise([0, *ends])]


def _load_detokenizer(model_path: Path | None, sha256: str) -> Detokenize | None:
    if model_path is None or not (model_path / "tokenizer.json").is_file() or tokenizer_sha256(model_path) != sha256:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(model_path / "tokenizer.json"))
    return lambda token_ids: str(tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))
