"""Everything that can go wrong between stages, in one tree; two classes matter.

    RollstreamError                 exit code
    ├── BadMessageError             -      one message is bad: dead letter, counted, go on
    │   └── PoisonError             -      the process died on this record too often (stage/starts.py)
    ├── BrokenWorldError            70     broker, disk, GPU: raise, exit, let the supervisor restart
    │   ├── BrokerError             70     the Kafka client gave up
    │   │   └── ExpiredTransactionError 70 a transaction was open for too long (transaction.py)
    │   ├── StuckRecordError        70     a record is unfinished beyond its bound
    │   ├── TooManyFailuresError    70     handlers keep failing: a world, not a message, is broken
    │   ├── InconsistentLedgerError 70     an entry contradicts those before it (ledger.py)
    │   └── WeightStoreError        70     weights cannot be written or deleted (weight_store.py)
    ├── CorruptWeightsError         70     a version's file is not what was published; the old one serves on
    ├── EngineError                 70     the engine did not do what was asked (engines/protocol.py)
    │   └── EngineDeadError         70     it will never answer again: raise, exit
    ├── RewardError                 70     a reward is no number (environments/rubric.py): unresolved
    ├── FencedError                 75     another process took over: supervisors don't restart this one
    └── ConfigurationError          78     settings or environment must be changed by a person
        ├── UnknownEnvironmentError 78     no environment has this name (environments/load.py)
        └── BrokenEnvironmentError  78     an environment's own code raised while it was loaded (environments/load.py)

`rollstream.schemas.codec.DecodeError` (bytes that are no record) is treated like `BadMessageError`; but to a trainer
that starts, an unreadable record of `weights` or `ledger` is a broken world.
Exit codes follow sysexits(3): EX_SOFTWARE 70, EX_TEMPFAIL 75, EX_CONFIG 78.
"""


class RollstreamError(Exception):
    """Root of the tree; `exit_code` is what a process that dies of it exits with."""

    exit_code: int = 70


class BadMessageError(RollstreamError):
    """This message cannot be handled, however often it is tried."""


class BrokenWorldError(RollstreamError):
    """No message can be handled until something outside is repaired."""


class BrokerError(BrokenWorldError):
    """The Kafka client reported an error that it cannot recover from."""


class StuckRecordError(BrokenWorldError):
    """A record is unfinished beyond its bound; a hung loop must not hide behind a polling thread."""


class TooManyFailuresError(BrokenWorldError):
    """More handler failures a minute than single bad messages explain."""


class FencedError(RollstreamError):
    """Another process holds this transactional id now."""

    exit_code = 75


class ConfigurationError(RollstreamError):
    """A setting, a file or the cluster is not what this process needs."""

    exit_code = 78


class RegistryError(RuntimeError):
    """The registry did not answer, or not with what was asked for."""
