"""Every error that this project raises, in one tree; two classes decide what happens to a process.

    RollstreamError                      exit code
    ├── BadMessageError                   70  one message is bad: dead letter, counted, go on
    │   ├── DecodeError                   70  these bytes are no readable record of their topic
    │   ├── EncodeError                   70  this record cannot be written
    │   │   └── RecordTooLargeError       70  it is over the size limit of its topic
    │   ├── UnknownSchemaError            70  no schema has the id in these bytes
    │   ├── FailedSampleError             70  the task is at fault: the sample ends as failed
    │   └── PoisonError                   70  the process died on this record too often
    ├── BrokenWorldError                  70  broker, disk, GPU: raise, exit, let the supervisor restart
    │   ├── BrokerError                   70  the Kafka client gave up
    │   │   ├── NoLeaderError             70  a partition has no leader, or not the one that was asked
    │   │   └── ExpiredTransactionError   70  a transaction was open for too long
    │   ├── RegistryError                 70  the schema registry did not answer, or not with what was asked for
    │   ├── StuckRecordError              70  a record is unfinished beyond its bound
    │   ├── TooManyFailuresError          70  handlers keep failing: a world, not a message, is broken
    │   ├── InconsistentLedgerError       70  an entry of the ledger contradicts those before it
    │   └── WeightStoreError              70  weights cannot be written or deleted
    ├── CorruptWeightsError               70  a version's file is not what was published; the old one serves on
    ├── EngineError                       70  the engine did not do what was asked: the sample is unresolved
    │   └── EngineDeadError               70  it will never answer again: raise, exit
    ├── RewardError                       70  a reward is no number: the sample is unresolved
    ├── FencedError                       75  another process took over: supervisors don't restart this one
    └── ConfigurationError                78  settings, files or cluster must be changed by a person
        ├── UnknownEnvironmentError       78  no environment has this name, or it does not take these options
        ├── BrokenEnvironmentError        78  an environment's own code raised while it was loaded
        ├── IncompatibleSchemaError       78  a record changed in a way that its older versions don't survive
        └── LocalStackError               78  the local stack cannot do what was asked
            ├── JavaMissingError          78  no Java 17 or newer anywhere
            ├── JarsUnusableError         78  a jar of Kafka is not the committed one, and can't be fetched
            ├── PortTakenError            78  a port that the stack needs belongs to another process
            ├── DiskFullError             78  too little room where the broker writes
            └── StartFailedError          70  a process of the stack ended, or did not answer in time

To a trainer that starts, an unreadable record of `weights` or `ledger` is a broken world. Exit codes follow
sysexits(3): EX_SOFTWARE 70, EX_TEMPFAIL 75, EX_CONFIG 78. A test compares this tree with the classes.
"""


class RollstreamError(Exception):
    """Root of the tree. `exit_code` is what a process that dies of it exits with."""

    exit_code: int = 70
    is_explained: bool = False
    """The message alone says what a person has to do: a traceback would only hide it."""


class BadMessageError(RollstreamError):
    """This message cannot be handled, however often it is tried."""


class DecodeError(BadMessageError):
    """These bytes are not a readable record of this topic; they end in dead-letters."""


class EncodeError(BadMessageError):
    """This record can't be written."""


class RecordTooLargeError(EncodeError):
    """The encoded record exceeds the size limit of its topic."""


class UnknownSchemaError(BadMessageError):
    """No schema has this id."""


class FailedSampleError(BadMessageError):
    """The sample is `failed`: no retry would help. `code` is a `FailureCode` (this module imports nothing)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PoisonError(BadMessageError):
    """The process died on this record too often."""


class BrokenWorldError(RollstreamError):
    """No message can be handled until something outside is repaired."""


class BrokerError(BrokenWorldError):
    """The Kafka client reported an error that it cannot recover from."""


class NoLeaderError(BrokerError):
    """A partition has no leader, or not the one that was asked: it was just created, or moves to another broker."""


class ExpiredTransactionError(BrokerError):
    """The broker refuses a transaction that was open for too long: it aborted it, or another process took over."""


class RegistryError(BrokenWorldError):
    """The schema registry did not answer, or not with what was asked for."""


class StuckRecordError(BrokenWorldError):
    """A record is unfinished beyond its bound; a hung loop must not hide behind a polling thread."""


class TooManyFailuresError(BrokenWorldError):
    """More handler failures a minute than single bad messages explain."""


class InconsistentLedgerError(BrokenWorldError):
    """An entry contradicts those before it: more than one trainer wrote, or the topic was tampered with."""


class WeightStoreError(BrokenWorldError):
    """Weights cannot be written or deleted: the disk is full, or the directory belongs to another trainer."""


class CorruptWeightsError(RollstreamError):
    """A file of a version is not what was published; the old version serves on."""


class EngineError(RollstreamError):
    """The engine did not do what was asked: the sample is unresolved, or the old weights serve on."""


class EngineDeadError(EngineError):
    """The engine will never answer again; only a new process helps."""


class RewardError(RollstreamError):
    """A reward function did not give a number: the rollout is unresolved, never a reward of 0."""


class FencedError(RollstreamError):
    """Another process holds this transactional id now."""

    exit_code = 75
    is_explained = True


class ConfigurationError(RollstreamError):
    """A setting, a file or the cluster is not what this process needs; a restart alone does not help."""

    exit_code = 78
    is_explained = True


class UnknownEnvironmentError(ConfigurationError):
    """No environment has this name, or it cannot be made with these options."""


class BrokenEnvironmentError(ConfigurationError):
    """The environment's own code raised while it was imported or made."""


class IncompatibleSchemaError(ConfigurationError):
    """A model changed in a way that older readers or writers don't survive."""


class LocalStackError(ConfigurationError):
    """The local stack cannot do what was asked; the message says what to change."""


class JavaMissingError(LocalStackError):
    """No Java that Kafka runs on was found."""


class JarsUnusableError(LocalStackError):
    """Kafka's jars are not the committed ones and could not be made so."""


class PortTakenError(LocalStackError):
    """A port this stack needs is in use."""


class DiskFullError(LocalStackError):
    """The directory has less room than the broker needs."""


class StartFailedError(LocalStackError):
    """A process of the stack ended early or did not answer before the deadline."""

    exit_code = 70
