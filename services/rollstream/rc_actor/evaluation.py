"""When the test data are asked: each time the weights are `eval_every_n_versions` versions newer."""

from dataclasses import dataclass


@dataclass(slots=True)
class EvaluationClock:
    """`every`: weight versions between two evaluations, 0 for never; `last`: the version of the newest one.

    `last` is to be kept with the journal, so that a restart does not evaluate again.
    """

    every: int
    last: int = 0

    def is_due(self, version: int) -> bool:
        """Whether to evaluate at this version. It then counts as evaluated, and no older one is due again.

        Versions that were passed over, since training was faster, are not made up for.
        """
        if not self.every or version // self.every <= self.last // self.every:
            return False
        self.last = version
        return True
