"""Credit: how many more groups a producer may submit, counted by id from what was submitted and the ledger. Pure.

Outstanding = submitted by this producer and not closed on the surviving branch. A group that is submitted twice, or
closed by a branch that is cut later, counts once and as what it is now; a sum of events would drift.

This is what bounds policy lag, if the producers' shares add up to at most (max_policy_lag + 1) x groups_per_step: a
prompt is one of at most that many open groups, so fewer are before it, and in order of arrival it is trained on at most
max_policy_lag steps after it was submitted. The shares are added up in `shares.py`, which warns. What arrives out of
order and too late is dropped by the trainer (`admission.py`).
"""

from rollstream.history.ledger import LedgerFold
from rollstream.schemas.ledger import LedgerEntry


class Credit:
    """The groups of one producer against its share."""

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
        """Own groups that are not closed; above the share after a cut, until enough of them close again."""
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
        """Whether the group needs no submission: this producer did it before, or it is closed."""
        return group_id in self._own or group_id in self._fold.closed

    def fold_in(self, entry: LedgerEntry) -> None:
        """Take in the ledger's next entry; raises `InconsistentLedgerError`."""
        change = self._fold.add(entry)
        self._outstanding.update(self._own.intersection(change.reopened))
        self._outstanding.difference_update(change.closed)
