"""The families of the corpus that know what a field means: code, sizes, contradictions, files, cycles, headers."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rollstream.schemas.topics import (
    DEAD_LETTERS,
    LEDGER,
    PRODUCERS,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    WEIGHTS,
    Topic,
)
from tests.hostile import wire
from tests.hostile.hostile import ASKED, GENERATED, OF_SCORERS, Context, Family, Hostile, example, one
from tests.hostile.hostile_letters import a_letter

Change = Callable[[wire.Fields], None]
_MIB: Final = 2**20
_MANY: Final = 300_000
"""Parts of one record: far more than any record of ours has, and each takes a hundred times its bytes in memory."""


def _changed(topic: Topic[Any], change: Change) -> Callable[[wire.Fields], bytes]:
    def made(fields: wire.Fields) -> bytes:
        change(fields)
        return wire.encoded(topic, fields)

    return made


def _each(context: Context, topic: Topic[Any], family: str, changes: dict[str, Change]) -> Iterator[Hostile]:
    for name, change in changes.items():
        yield one(context, topic, family, name, _changed(topic, change))


def _prompt_of(topic: Topic[Any], fields: wire.Fields) -> wire.Fields:
    """The prompt in a record of `topic`."""
    held: wire.Fields = fields if topic in ASKED else fields["prompt"] if topic in GENERATED else _rollout(fields)
    return held["prompt"] if topic in OF_SCORERS else held


def _rollout(fields: wire.Fields) -> wire.Fields:
    rollout: wire.Fields = fields.get("rollout", fields)
    return rollout


def large(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Sizes at the limit, far above it once they are unpacked, and far above it in number."""
    yield Hostile(topic=topic.name, family="large", name="20 MB of zeros", value=bytes(20 * _MIB))
    if topic not in (PROMPTS, ROLLOUTS, SCORED):
        return
    prompt = lambda fields: _prompt_of(topic, fields)  # noqa: E731

    def many_messages(fields: wire.Fields) -> None:
        prompt(fields)["messages"] = [{"role": "", "content": "", "tool_calls": [], "tool_call_id": None}] * _MANY

    changes: dict[str, Change] = {
        "a prompt at the limit": lambda fields: prompt(fields)["messages"][0].update(content="7" * (7 * _MIB - 4096)),
        "a group id of 2.6 MB": lambda fields: _set_group(fields, "g" * 2_600_000),
    }
    if topic is PROMPTS:
        changes |= {
            "a prompt of 20 MB": lambda fields: prompt(fields)["messages"][0].update(content="7" * 20 * _MIB),
            "metadata of 6 MB": lambda fields: prompt(fields).update(metadata={"note": "n" * 6 * _MIB}),
            "many tools": lambda fields: prompt(fields).update(tools=["{}"] * _MANY),
            "many messages": many_messages,
        }
    yield from _each(context, topic, "large", changes)


def _set_group(fields: wire.Fields, group: str) -> None:
    rollout = _rollout(fields)
    rollout["group_id"] = group
    if "prompt" in rollout:
        rollout["prompt"]["group_id"] = group


_CODE: Final[dict[str, dict[str, str]]] = {
    "os.system": {"command": "touch {outside}/touched"},
    "os.mkdir": {"path": "{outside}/touched"},
    "os.fork": {},
    "os.abort": {},
    "os._exit": {"status": "0"},
    "sys.exit": {},
    "signal.pause": {},
    "builtins.eval": {},
    "builtins.object": {},
    "subprocess.getoutput": {"cmd": "touch {outside}/touched"},
    "pathlib.Path": {},
    "rollstream.cli.main.main": {},
    "tests.harness.unruly_environment.Unruly": {},
    "..relative": {},
    "nothing": {},
    "": {},
}


def code(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Agents and environments that name code."""
    if topic not in (*ASKED, *GENERATED):
        return
    changes: dict[str, Change] = {}
    for path, options in _CODE.items():
        filled = {name: value.format(outside=context.outside) for name, value in options.items()}
        agent = {"name": path, "options": filled}
        changes[f"agent {path}"] = lambda fields, agent=agent: _prompt_of(topic, fields).update(agent=agent)
        changes[f"environment {path}"] = lambda fields, path=path: _prompt_of(topic, fields).update(environment=path)
    yield from _each(context, topic, "code", changes)


def sampling(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Requests that no engine should get, and versions that never come."""
    if topic not in ASKED:
        return
    changes: dict[str, Change] = {
        "temperature 1e-300": lambda fields: fields["sampling"].update(temperature=1e-300),
        "temperature 1e300": lambda fields: fields["sampling"].update(temperature=1e300),
        "top_k 2^62": lambda fields: fields["sampling"].update(top_k=2**62),
        "max_tokens 2^62": lambda fields: fields["sampling"].update(max_tokens=2**62),
        "seed 2^63 - 1": lambda fields: fields["sampling"].update(seed=2**63 - 1),
        "seed -2^63": lambda fields: fields["sampling"].update(seed=-(2**63)),
        "a thousand stop texts": lambda fields: fields["sampling"].update(stop=["7"] * 1000),
        "an empty stop text": lambda fields: fields["sampling"].update(stop=[""]),
        "group_size a million": lambda fields: fields.update(group_size=10**6),
        "group_size 10^12": lambda fields: fields.update(group_size=10**12),
        "a future version": lambda fields: fields.update(weight_version=10**9),
        "a negative version": lambda fields: fields.update(weight_version=-1),
        "tools that are no JSON": lambda fields: fields.update(tools=["{", "[[[["]),
        "tools nested deeply": lambda fields: fields.update(tools=["[" * 100_000 + "]" * 100_000]),
        "roles that nobody knows": lambda fields: fields["messages"][0].update(role="root"),
        "a question outside the vocabulary": lambda fields: fields["messages"][0].update(content="日本語=" * 5),
        "purpose of the other topics": lambda fields: fields.update(purpose="serve"),
    }
    yield from _each(context, topic, "sampling", changes)


def contradictions(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Rollouts whose parts do not belong together."""
    if topic not in (*GENERATED, *OF_SCORERS):
        return
    failure = {"code": "engine", "message": "x"}

    def span(fields: wire.Fields, **other: int) -> None:
        _rollout(fields)["turns"][0]["weight_spans"][0].update(other)

    changes: dict[str, Change] = {
        "a sample beyond its group": lambda fields: _rollout(fields).update(sample_index=7),
        "another group than its id": lambda fields: _rollout(fields).update(rollout_id="other-0"),
        "another group than its prompt": lambda fields: _rollout(fields)["prompt"].update(group_id="other"),
        "another size than its prompt": lambda fields: _rollout(fields).update(group_size=3),
        "a size of 10^12": lambda fields: _rollout(fields).update(group_size=10**12),
        "failed with turns": lambda fields: _rollout(fields).update(status="failed", failure=failure),
        "failed without a failure": lambda fields: _rollout(fields).update(status="failed"),
        "completed with a failure": lambda fields: _rollout(fields).update(failure=failure),
        "completed without turns": lambda fields: _rollout(fields).update(turns=[]),
        "a status that nobody knows": lambda fields: _rollout(fields).update(status="UNKNOWN"),
        "spans of a future version": lambda fields: span(fields, weight_version=10**9),
        "spans of version 2^63 - 1": lambda fields: span(fields, weight_version=2**63 - 1),
        "spans with a gap": lambda fields: span(fields, start=1),
        "spans beyond the tokens": lambda fields: span(fields, end=2**40),
        "a prefix of a later turn": lambda fields: _rollout(fields)["turns"][0].update(prefix_turn=5),
        "a prefix of itself": lambda fields: _rollout(fields)["turns"][0].update(prefix_turn=0, prefix_tokens=3),
        "a prefix of 2^50 tokens": lambda fields: _rollout(fields)["turns"][0].update(prefix_tokens=2**50),
        "thousands of branches of a long turn": _branching,
        "a thousand turns": lambda fields: _rollout(fields).update(turns=_rollout(fields)["turns"] * 1000),
        "it ended before it began": lambda fields: _rollout(fields).update(finished_at=0),
    }
    if topic in OF_SCORERS:
        scoring = lambda fields: fields["scoring"]  # noqa: E731
        changes |= {
            "a failed rollout scored": lambda fields: _rollout(fields).update(
                status="failed", failure=failure, turns=[]
            ),
            "completed without a reward": lambda fields: scoring(fields).update(reward=None),
            "failed with a reward": lambda fields: scoring(fields).update(status="failed", failure=failure),
            "a reward of 1e308": lambda fields: scoring(fields).update(reward=1e308),
            "a reward of -1e308": lambda fields: scoring(fields).update(reward=-1e308),
            "components of 1e308": lambda fields: scoring(fields).update(components={"exact_match": 1e308}),
            "components with escape sequences": lambda fields: scoring(fields).update(components={"\x1b[2J": 1.0}),
            "a temperature of 1e-300": lambda fields: _rollout(fields)["prompt"]["sampling"].update(temperature=1e-300),
        }
    yield from _each(context, topic, "contradictions", changes)


def _branching(fields: wire.Fields) -> None:
    """Many turns that extend the first one by nothing: as samples they have millions of tokens."""
    (turn,) = _rollout(fields)["turns"]
    long = {**turn, "prompt_token_ids": b"\x05\0\0\0" * 400}
    _rollout(fields)["turns"] = [long, *[{**turn, "prefix_turn": 0, "prefix_tokens": 400}] * 4000]


def foreign_files(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Versions whose files are none of the run's, and trees of versions that are none."""
    if topic is not WEIGHTS:
        return
    outside = context.outside
    uris = (
        outside.as_uri(), "file:///dev/zero", "file:///proc/self/environ", f"file://{outside}/fifo", "file:///",
        f"file://{outside}/%00", "file://elsewhere/srv", "http://127.0.0.1:1/x", "weights/../..", "",
        "file:" + "a" * 5000,
    )  # fmt: skip
    files = ("secret.txt", "../secret.txt", f"{outside}/secret.txt", "fifo", "a\0b", "", ".", "a/" * 3000, "/dev/zero")
    changes: dict[str, Change] = {f"uri {uri[:40]!r}": lambda fields, uri=uri: fields.update(uri=uri) for uri in uris}
    for name in files:
        file = {"name": name, "num_bytes": 17, "sha256": "00" * 32}
        changes[f"file {name[:40]!r}"] = lambda fields, file=file: fields.update(uri=outside.as_uri(), files=[file])
    version = lambda fields: fields["weight_version"]  # noqa: E731
    changes |= {
        "files of 2^62 bytes": lambda fields: fields["files"][0].update(num_bytes=2**62),
        "no files": lambda fields: fields.update(files=[]),
        "a hundred thousand files": lambda fields: fields.update(files=fields["files"][:1] * 100_000),
        "its own parent": lambda fields: fields.update(parent_version=version(fields)),
        "a later parent": lambda fields: fields.update(parent_version=version(fields) + 1),
        "the parent of its parent": lambda fields: fields.update(
            weight_version=version(fields) + 1, parent_version=version(fields)
        ),
        "a parent that nobody knows": lambda fields: fields.update(parent_version=10**12),
        "version 2^63 - 1": lambda fields: fields.update(weight_version=2**63 - 1),
        "another model": lambda fields: fields.update(model="stranger"),
        "a delta": lambda fields: fields.update(kind="delta"),
        "a kind that nobody knows": lambda fields: fields.update(kind="UNKNOWN"),
        "step 2^63 - 1": lambda fields: fields.update(step=2**63 - 1),
    }
    yield from _each(context, topic, "foreign_files", changes)


def false_entries(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Entries of the ledger that no trainer wrote."""
    if topic is not LEDGER:
        return
    stranger = {"group_id": "stranger", "outcome": "dropped", "reason": "\x1b[2J"}
    changes: dict[str, Change] = {
        "its own parent": lambda fields: fields.update(parent_version=fields["weight_version"]),
        "no parent": lambda fields: fields.update(parent_version=None),
        "a first restart": lambda fields: fields.update(kind="restart", parent_version=None),
        "drops of another version": lambda fields: fields.update(kind="drops", parent_version=None, closed=[stranger]),
        "drops with a checkpoint": lambda fields: fields.update(kind="drops", checkpoint="file:///dev/zero"),
        "a rollback to nowhere": lambda fields: fields.update(kind="rollback", parent_version=10**12),
        "a kind that nobody knows": lambda fields: fields.update(kind="UNKNOWN"),
        "metrics that are no numbers": lambda fields: fields.update(metrics={"loss": float("nan"), "\0": 1e308}),
        "a hundred thousand groups": lambda fields: fields.update(closed=[stranger] * 100_000),
    }
    yield from _each(context, topic, "false_entries", changes)


def false_progress(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """How far a producer of the run is, according to a stranger."""
    if topic is not PRODUCERS:
        return
    own = {"producer": "producer"}
    changes: dict[str, Change] = {
        "an incarnation that nobody can follow": lambda fields: fields.update(own, incarnation=2**63 - 1),
        "an incarnation of long ago": lambda fields: fields.update(own, incarnation=1, next_sequence=0),
        "a place that is none": lambda fields: fields.update(mark="\x1b[2J" * 1000),
        "a hundred thousand open groups": lambda fields: fields.update(open_groups=["g"] * 100_000),
        "offsets of partitions that are none": lambda fields: fields.update(prompts_offsets={"-1": 7, "x": 8}),
        "offsets beyond the log": lambda fields: fields.update(ledger_offset=2**62, prompts_offsets={"0": 2**62}),
    }
    yield from _each(context, topic, "false_progress", changes)


def headers(context: Context, topic: Topic[Any]) -> Iterator[Hostile]:
    """Headers that our readers look at, on records that can't be read and on dead letters that nobody wrote."""
    wrong = {
        "replays that are no number": {"rollstream.replays": "abc"},
        "negative replays": {"rollstream.replays": "-5"},
        "replays beyond 64 bits": {"rollstream.replays": "9" * 40},
        "replays that are no UTF-8 number": {"rollstream.replays": "\u0665"},
        "another original": {"original.topic": "another.topic", "original.partition": "-1", "original.offset": "x"},
        "a traceparent that is none": {"traceparent": "00-" + "g" * 5000},
        "escape sequences": {"error.message": "\x1b[2J[bold]", "error.class": "\x1b]0;x\x07"},
        "many": {f"header-{number}": "x" for number in range(1000)},
    }
    for name, added in wrong.items():
        if topic is DEAD_LETTERS:
            letter = a_letter(context, **{"original.offset": str(10**6 + len(name)), **added})
            yield Hostile(topic=topic.name, family="headers", name=name, value=b"garbage", headers=letter)
        else:
            value = wire.encoded(topic, example(context, topic, f"headers/{name}"))[:-3]
            yield Hostile(topic=topic.name, family="headers", name=name, value=value, headers=added)


_FAMILIES = (large, code, sampling, contradictions, foreign_files, false_entries, false_progress, headers)
SPECIAL: Final[dict[str, Family]] = {family.__name__: family for family in _FAMILIES}
