"""All errors of this project, in one tree. Two classes decide whether a process goes on:

`BadMessageError` is about one message: a dead letter, a failed sample or a dropped group. The process goes on.
`BrokenWorldError` is a broken world: nothing can be handled until something outside is repaired. The process exits.

    RollstreamError                      exit code
    ├── BadMessageError                   70  one message is bad: the process goes on
    │   ├── DecodeError                   70  these bytes are no readable record of their topic
    │   ├── EncodeError                   70  this record cannot be written
    │   │   └── RecordTooLargeError       70  it is over the size limit of its topic
    │   ├── UnknownSchemaError            70  no schema has the id in these bytes
    │   ├── FailedSampleError             70  the task is at fault: the sample ends as failed
    │   ├── PoisonError                   70  the process ended on this record too often
    │   ├── UnusableRowError              70  a row of a file can't be used: it is left out
    │   └── UnfitColumnError              70  the values of a column have no type in common: it becomes text
    ├── BrokenWorldError                  70  broker, disk, GPU: the process exits, its supervisor restarts it
    │   ├── BrokerError                   70  the Kafka client gave up
    │   │   ├── NoLeaderError             70  a partition has no leader, or another one than was asked
    │   │   ├── ExpiredTransactionError   70  a transaction was open, or its id idle, for too long
    │   │   └── TopicChangedError         70  a topic that is read was deleted or made anew
    │   ├── RegistryError                 70  the schema registry did not answer, or with an error
    │   ├── StuckRecordError              70  a record is unfinished beyond its bound
    │   ├── TooManyFailuresError          70  too many handlers failed within a minute
    │   ├── InconsistentLedgerError       70  a record of ledger or weights can't be read or contradicts
    │   ├── WeightStoreError              70  the place for weights or checkpoints is full, broken or does not answer
    │   └── MachineError                  70  the machine refuses a file, memory, threads or room
    ├── CorruptWeightsError               70  a version's file is not what was published; the old one stays
    ├── EngineError                       70  the engine did not do what was asked: the sample is unresolved
    │   ├── EngineLateError               70  there was no answer within the deadline of the call
    │   └── EngineDeadError               70  it will never answer again: the process exits
    │       └── RefusedKeyError           78  a server refuses the key: no other call is answered either
    ├── ToolError                         70  nothing says what became of a tool's call: the sample is unresolved
    │   ├── FencedToolError               70  another process goes on with the session of a tool
    │   └── RepeatableToolError           70  what was asked of a tool's server may be asked again
    ├── DivergedError                     70  an agent asks something else than in the attempt that it goes on with
    ├── NoRoomError                       70  a sample has no room for another turn: it ends as completed, cut off
    ├── RewardError                       70  a reward is not a number: the sample is unresolved
    ├── SpoolFullError                    70  no more answers can be recorded now: the call is refused
    ├── RefusedRequestError               70  what a client sent can't be taken: it is told why
    ├── FencedError                       75  another process took over: supervisors don't restart this one
    └── ConfigurationError                78  settings, files or cluster must be changed by a person
        ├── UnknownEnvironmentError       78  no environment has this name, or it does not take these options
        ├── BrokenEnvironmentError        78  an environment's own code raised while it was loaded
        ├── DamagedFileError              78  a file that a process keeps for itself can't be read any more
        ├── IncompatibleSchemaError       78  a record changed so that its versions cannot read each other
        └── LocalStackError               78  the local stack cannot do what was asked
            ├── JavaMissingError          78  no Java 17 or newer anywhere
            ├── JarsUnusableError         78  a jar of Kafka is not the committed one and can't be fetched
            ├── PortTakenError            78  a port that the stack needs belongs to another process
            ├── DiskFullError             70  too little room where the broker writes
            └── StartFailedError          70  a process of the stack ended, or did not answer in time

When a trainer starts, an unreadable record of `weights` or `ledger` is a broken world, since every record there counts.
Exit codes follow sysexits(3): EX_SOFTWARE 70, EX_TEMPFAIL 75, EX_CONFIG 78. A test compares this tree with the classes.
"""


class RollstreamError(Exception):
    """Root of the tree. A process that this error ends exits with `exit_code`."""

    exit_code: int = 70
    is_explained: bool = False
    """Whether the message says what to do, so that it is logged without a traceback."""


class BadMessageError(RollstreamError):
    """One message cannot be handled, and no retry would help."""


class DecodeError(BadMessageError):
    """These bytes are not a readable record of their topic; they become a dead letter."""


class EncodeError(BadMessageError):
    """This record can't be written."""


class RecordTooLargeError(EncodeError):
    """The encoded record exceeds the size limit of its topic."""


class UnknownSchemaError(BadMessageError):
    """No schema has this id."""


class FailedSampleError(BadMessageError):
    """The sample is failed; no retry would help. `code` is a `FailureCode` as text: this module imports nothing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PoisonError(BadMessageError):
    """Handling this record ended the process too often (a poison record)."""


class UnusableRowError(BadMessageError):
    """Why a row of a file is left out. `reason`: one of few texts, so that rows can be counted by it."""

    def __init__(self, reason: str, found: str = "") -> None:
        super().__init__(f"{reason}: {found}" if found else reason)
        self.reason = reason


class UnfitColumnError(BadMessageError):
    """A value does not fit the type that its column had so far: the file is written again, with that column as text."""


class BrokenWorldError(RollstreamError):
    """No message can be handled until something outside is repaired."""


class BrokerError(BrokenWorldError):
    """The Kafka client reported an error that it cannot recover from."""


class NoLeaderError(BrokerError):
    """A partition has no leader, or another one than was asked: it was just created, or it moves to another broker."""


class ExpiredTransactionError(BrokerError):
    """The broker gave up a transaction that was open, or an id that was idle, for too long; or another took over."""


class TopicChangedError(BrokerError):
    """A topic was deleted, made anew or cut short while it was read. A new process judges what is there now."""

    is_explained = True


class RegistryError(BrokenWorldError):
    """The schema registry did not answer, or answered with an error."""


class StuckRecordError(BrokenWorldError):
    """A record is unfinished for too long: its handler hangs, although the polling thread still polls."""


class TooManyFailuresError(BrokenWorldError):
    """More handlers failed within a minute than single bad messages could cause."""


class InconsistentLedgerError(BrokenWorldError):
    """A record of `ledger` or `weights` can't be read, or contradicts those before it: somebody else wrote there."""


class WeightStoreError(BrokenWorldError):
    """The place for weights or checkpoints is broken: a full disk, an object store that does not answer.

    A generator goes on with the weights that it has, and tries again.
    """


class MachineError(BrokenWorldError):
    """The machine refuses what every process needs: a file, memory, threads or room. The message says which."""

    is_explained = True


class CorruptWeightsError(RollstreamError):
    """A file of a version is not what was published; the generator keeps the version that it has."""


class EngineError(RollstreamError):
    """The engine did not do what was asked. The sample is unresolved, or the engine keeps its old weights."""


class EngineLateError(EngineError):
    """There was no answer within the deadline of the call, or a server asks to wait longer than that."""


class EngineDeadError(EngineError):
    """The engine will never answer again; only a new process helps."""


class RefusedKeyError(EngineDeadError):
    """A server refuses the key. Each further call would be refused too, and would look like a fault of its task."""

    exit_code = 78
    is_explained = True


class ToolError(RollstreamError):
    """A tool's server did not answer, or what became of a call is not known. The sample is unresolved."""


class RepeatableToolError(ToolError):
    """What was asked of a tool's server did not arrive, or may be asked again all the same."""


class FencedToolError(ToolError):
    """Another process goes on with the session, and so with its sample: this one is thought dead."""


class DivergedError(RollstreamError):
    """An agent asks something else than in the attempt that it goes on with. The sample begins anew if it may."""


class NoRoomError(RollstreamError):
    """The model's length, or the bound of turns, leaves no room for another turn: the sample ends as completed."""


class RewardError(RollstreamError):
    """A reward function did not give a number: the rollout is unresolved, never a reward of 0."""


class SpoolFullError(RollstreamError):
    """The spool of answers that are not on Kafka yet has no room: a call is refused, and its client tries again."""


class RefusedRequestError(RollstreamError):
    """What a client sent can't be taken. `status` is that of the answer, `reason` is counted: one of few texts."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class FencedError(RollstreamError):
    """Another process has taken over the part of this one; supervisors don't restart this one."""

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


class DamagedFileError(ConfigurationError):
    """A file that a process keeps for itself, such as a database, is garbage now. Some can be made again."""


class IncompatibleSchemaError(ConfigurationError):
    """A record changed so that older versions cannot read the new one, or the new one cannot read them."""


class LocalStackError(ConfigurationError):
    """The local stack cannot do what was asked; the message says what to change."""


class JavaMissingError(LocalStackError):
    """No Java that Kafka runs on was found."""


class JarsUnusableError(LocalStackError):
    """Kafka's jars are not the committed ones, and the committed ones could not be fetched."""


class PortTakenError(LocalStackError):
    """A port this stack needs is in use."""


class DiskFullError(LocalStackError):
    """The directory has less room than the broker needs."""

    exit_code = 70


class StartFailedError(LocalStackError):
    """A process of the stack ended early or did not answer before the deadline."""

    exit_code = 70
