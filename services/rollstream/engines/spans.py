"""Which weight version sampled which tokens, noted as they come."""

from rollstream.schemas.rollout import WeightSpan


class SpanRecorder:
    """Collects where each version's tokens start."""

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []

    def note(self, weight_version: int, position: int) -> None:
        """The token at `position` was sampled by `weight_version`; positions come in order."""
        if not self._starts or self._starts[-1][0] != weight_version:
            self._starts.append((weight_version, position))

    def covering(self, num_tokens: int) -> tuple[WeightSpan, ...]:
        """The spans over [0, num_tokens)."""
        ends = [start for _, start in self._starts[1:]] + [num_tokens]
        return tuple(
            WeightSpan(weight_version=version, start=start, end=end)
            for (version, start), end in zip(self._starts, ends, strict=True)
            if end > start
        )
