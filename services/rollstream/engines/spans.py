"""Records the spans of a turn: which weight version sampled which tokens."""

from rollstream.schemas.rollout import WeightSpan


class SpanRecorder:
    """Collects at which position the tokens of each weight version start."""

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []

    def note(self, weight_version: int, position: int) -> None:
        """Note that `weight_version` sampled the token at `position`. Positions must come in order."""
        if not self._starts or self._starts[-1][0] != weight_version:
            self._starts.append((weight_version, position))

    def covering(self, num_tokens: int) -> tuple[WeightSpan, ...]:
        """The spans that together cover [0, num_tokens)."""
        ends = [start for _, start in self._starts[1:]] + [num_tokens]
        return tuple(
            WeightSpan(weight_version=version, start=start, end=end)
            for (version, start), end in zip(self._starts, ends, strict=True)
            if end > start
        )
