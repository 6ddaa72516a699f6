"""What happened to a run as a whole, from its first ledger entry on: for metrics that outlive a trainer's process."""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from rollstream.schemas.ledger import EntryKind, LedgerEntry


class Milestones(BaseModel):
    """Counts of entries, and the times of the newest. Entries that a rollback or restart cut count too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    restarts: int = Field(default=0, ge=0, description="Entries of kind restart")
    rollbacks: int = Field(default=0, ge=0, description="Entries of kind rollback")
    last_step_at: datetime | None = Field(default=None, description="When the newest step was committed")
    last_checkpoint_at: datetime | None = Field(default=None, description="When the newest checkpoint was named")

    def after(self, entry: LedgerEntry) -> "Milestones":
        """The same after one more entry."""
        return Milestones(
            restarts=self.restarts + (entry.kind is EntryKind.RESTART),
            rollbacks=self.rollbacks + (entry.kind is EntryKind.ROLLBACK),
            last_step_at=entry.finished_at if entry.kind is EntryKind.STEP else self.last_step_at,
            last_checkpoint_at=self.last_checkpoint_at if entry.checkpoint is None else entry.finished_at,
        )
