"""Runs for the trainer's tests: the test writes their prompts and scored samples, no other stage takes part."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, TopicPartition

from rollstream.engines.identity import tokenizer_sha256
from rollstream.history.ledger import Survivors, surviving
from rollstream.local.tiny_model import write_tiny_model, write_tokenizer
from rollstream.schemas.codec import AvroCodec
from rollstream.schemas.ledger import GroupOutcome, LedgerEntry
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.scored import RolloutScored
from rollstream.schemas.topics import LEDGER, SCORED
from tests.harness.builders import a_generator, a_prompt, a_rollout, a_turn
from tests.harness.forking import start_forked
from tests.harness.processes import StartedProcess
from tests.harness.running import Run, a_run
from tests.harness.trainer_process import start_trainer

GROUP_SIZE = 4
GROUPS_PER_STEP = 2

Start = Callable[..., StartedProcess]


def write_model(path: Path) -> Path:
    """A model small enough for many optimizer steps a second; written where torch is imported already."""
    path.mkdir(exist_ok=True)
    write = partial(write_tiny_model, path, seed=0, hidden=32, layers=1, heads=2, ffn=64)
    writer = start_forked(write, log=path.with_name(f"{path.name}.log"))
    assert writer.wait() == 0, writer.said()
    return path


@contextmanager
def a_trainer_run(kafka: str, name: str, directory: Path, model: Path, *, partitions: int = 2) -> Iterator[Run]:
    """A fresh run, configured for a trainer with checkpoints in its directory."""
    directory.mkdir(exist_ok=True)
    with a_run(kafka, name, directory, partitions=partitions) as fresh:
        fresh.shared |= {"groups_per_step": GROUPS_PER_STEP, "max_policy_lag": 15}
        fresh.tables["trainer"] = {
            "model_path": model,
            "checkpoints": directory / "checkpoints",
            "learning": {"learning_rate": 0.01, "threads": 1},
        }
        yield fresh


@contextmanager
def trainers(run: Run) -> Iterator[Start]:
    """Gives what starts a trainer of the run, as `start_trainer` does; what still runs at the end is killed."""
    started: list[StartedProcess] = []

    def start_one(*options: str, clock: Path | None = None, **environment: str) -> StartedProcess:
        started.append(start_trainer(run, *options, clock=clock, **environment))
        return started[-1]

    try:
        yield start_one
    finally:
        for trainer in started:
            trainer.kill()


def configure(run: Run, **settings: object) -> None:
    """Change settings of the trainers that start from now on."""
    run.tables["trainer"] = {**run.tables["trainer"], **settings}


def submitted(run: Run, num_groups: int, *, first: int = 0) -> list[PromptSubmitted]:
    """Prompts of the run, on `prompts`."""
    prompts = [a_prompt(row, run=run.name, group_size=GROUP_SIZE) for row in range(first, first + num_groups)]
    run.submit(*prompts)
    return prompts


def scored(run: Run, prompts: Sequence[PromptSubmitted], *, version: int = 0, samples: int = GROUP_SIZE) -> None:
    """Their samples with spread in the rewards, sampled by `version`, on `scored`."""
    put_scored(run, [a_scored(prompt, index, version) for prompt in prompts for index in range(samples)])


def scored_groups(run: Run, num_groups: int, *, first: int = 0, version: int = 0) -> list[PromptSubmitted]:
    """Prompts that were submitted, and all of whose samples are scored."""
    prompts = submitted(run, num_groups, first=first)
    scored(run, prompts, version=version)
    return prompts


def a_scored(
    prompt: PromptSubmitted, index: int, version: int, *, reward: float | None = None, token_id: int = 4
) -> RolloutScored:
    """One sample that begins with `token_id`; without a reward of its own, those of a group have spread."""
    turn = a_turn((token_id, 5, 6, 9, 13, 1), spans=[(version, 0, 6)])
    generator = a_generator(tokenizer_sha256=model_tokenizer(), chat_template_sha256="")
    value = float(index % 2) if reward is None else reward
    return a_rollout(value, index, prompt=prompt, turns=(turn,), generator=generator)


@cache
def model_tokenizer() -> str:
    """Hash of the tokenizer of every model that `write_model` writes: a trainer refuses samples of any other."""
    with TemporaryDirectory() as directory:
        write_tokenizer(Path(directory), max_length=512)
        return tokenizer_sha256(Path(directory))


def put_scored(run: Run, rollouts: Sequence[RolloutScored]) -> None:
    """Put samples on `scored`."""
    codec = AvroCodec(SCORED)
    run.publish("scored", [(rollout.rollout.group_id, codec.encode(rollout)) for rollout in rollouts])


def ledger(run: Run) -> list[LedgerEntry]:
    """Every entry."""
    return run.records(LEDGER)


def survivors(run: Run) -> Survivors:
    """The surviving branch."""
    return surviving(ledger(run))


def num_trained(found: Survivors) -> int:
    """Groups that were trained on."""
    return sum(group.outcome is GroupOutcome.TRAINED for group in found.closed.values())


def check_nothing_lost_or_twice(run: Run, prompts: Sequence[PromptSubmitted]) -> Survivors:
    """Every prompt is closed on the surviving branch, and no rollout or group counts in two surviving entries."""
    found = survivors(run)
    closed = Counter(group.group_id for entry in found.chain for group in entry.closed)
    trained = Counter(rollout.rollout_id for entry in found.chain for rollout in entry.trained)
    assert closed == Counter(prompt.group_id for prompt in prompts)
    assert set(trained.values()) <= {1}
    return found


def weight_directories(run: Run) -> set[str]:
    """Names of the weight versions that are stored, whether they count or not."""
    return {path.name for path in (run.directory / "weights").glob("[0-9]*")}


def ends(run: Run, topic: str) -> list[TopicPartition]:
    """The end of each partition of a topic."""
    name = f"{run.name}.{topic}"
    consumer = Consumer({**run.kafka.client_config(), "group.id": "ends"})
    partitions = [TopicPartition(name, number) for number in consumer.list_topics(name).topics[name].partitions]
    found = [TopicPartition(p.topic, p.partition, consumer.get_watermark_offsets(p)[1]) for p in partitions]
    consumer.close()
    return found


def commit_all(run: Run, group: str, topic: str) -> None:
    """Commit the end of a topic for a consumer group of the run, as if it had handled everything there."""
    consumer = Consumer({**run.kafka.client_config(), "group.id": f"{run.name}.{group}"})
    consumer.commit(offsets=ends(run, topic), asynchronous=False)
    consumer.close()
