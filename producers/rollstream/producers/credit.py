"""Credit: how many more groups a producer may submit. Pure.

A group is outstanding if this producer submitted it and it is not closed on the surviving branch. Credit is the share
minus the outstanding groups. They are kept as a set of ids: a group that is submitted twice counts once, and one whose
closing is cut later is outstanding again. A sum of events would drift.

This bounds policy lag if the shares of all producers add up to at most (max_policy_lag + 1) x groups_per_step. Then
fewer groups than that are open when a prompt is submitted: in order of arrival at most max_policy_lag steps come before
its own. `shares.py` adds up the shares and warns. What is too late all the same, since it came out of order or was
sampled by a generator that is behind, is dropped by the trainer (`admission.py`).
"""

from rollstream.history.ledger import LedgerFold
from rollstream.schemas.ledger import LedgerEntry


class Credit:
    """Counts the open groups of one producer against its share."""

    def __init__(self, share: int) -> None:
        self._share = share
        self._fold = LedgerFold()
        self._own: set[str] = set()
        self._outstanding: set[str] = set()

    @property
    def share(self) -> int:
        """Most groups that may be outstanding."""
        return self._share

    @property
    def num_outstanding(self) -> int:
        """Own groups that are not closed; after a cut they may be more than the share, until enough close again."""
        return len(self._outstanding)

    @property
    def free(self) -> int:
        """How many groups may be submitted now."""
        return max(0, self._share - len(self._outstanding))

    def submitted(self, group_id: str) -> None:
        """Count a group as this producer's; submitting it again changes nothing."""
        self._own.add(group_id)
        if group_id not in self._fold.closed:
            self._outstanding.add(group_id)

    def is_known(self, group_id: str) -> bool:
        """Whether the group must not be submitted: this producer did it before, or the group is closed."""
        return group_id in self._own or group_id in self._fold.closed

    def fold_in(self, entry: LedgerEntry) -> None:
        """Take in the ledger's next entry; raises `InconsistentLedgerError`."""
        change = self._fold.add(entry)
        self._outstanding.update(self._own.intersection(change.reopened))
        self._outstanding.difference_update(change.closed)
