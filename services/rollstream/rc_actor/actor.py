"""One run of the actor: its engine, data, streams and journal, put together; it goes on where an earlier one was."""

import asyncio
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollstream.agents.load import Agents
from rollstream.agents.samples import SampleBounds, SampleRunner, identity_of
from rollstream.engines.build import build_engine
from rollstream.engines.http.settings import HttpSettings
from rollstream.engines.others import other_engines
from rollstream.engines.settings import EngineSettings
from rollstream.environments.pool.pool import PoolBounds, ScoringPool
from rollstream.offline.tasks import CollectTask, TaskSource
from rollstream.process.files import held
from rollstream.process.settings.base import StageSettings
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop, first_to_end
from rollstream.process.terminal import Say
from rollstream.rc_actor.datasets import evaluation_problems, training_problems
from rollstream.rc_actor.evaluation import EvaluationClock
from rollstream.rc_actor.groups import GroupWork, ProblemGroup
from rollstream.rc_actor.journal import ActorJournal
from rollstream.rc_actor.lines import SingleStreamSpec, StreamBackend
from rollstream.rc_actor.loop import Outlet, RCActorLoop
from rollstream.rc_actor.policies import maker_with_policies
from rollstream.rc_actor.ready import key_of, wait_for_services
from rollstream.rc_actor.settings import RCSettings, split_urls
from rollstream.rc_actor.streams import backend_named, read_stream, write_to_streams
from rollstream.rc_actor.training_text import TrainingText
from rollstream.rows.row import BadRow
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import AgentChoice, PromptSource, PromptSubmitted, Purpose
from rollstream.schemas.record import utc_now

_LOG = logging.getLogger(__name__)

TRAIN: Final = ("rc_actor", "rc_stats")
TEST: Final = ("rc_actor_test", "rc_stats_test")
"""The topics of groups and of figures."""
SUMMARIZER: Final = "summarizer"
_RUN: Final = "rc_actor"
_JOURNAL: Final = "rc_actor.sqlite"
_STREAMS: Final = "streams"
_LONGEST_CALL_SECONDS: Final = 86400.0
_STOPPED: Final = 130


@dataclass(eq=False)
class Actor:
    """What the loops of a run share, once everything is open. `agent`: that of the settings, made once."""

    settings: RCSettings
    agent: AgentChoice
    journal: ActorJournal
    backend: StreamBackend
    work: GroupWork
    clock: EvaluationClock
    _evaluations: set["asyncio.Task[None]"] = field(default_factory=set)
    _evaluating: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Training problems, with evaluations in between; or the test problems alone."""
        if self.settings.eval_only:
            await self._evaluate(0)
            return
        begun_with = self.journal.fact("input") or ""
        tasks = training_problems(self.settings, begun_with)
        identity = await asyncio.to_thread(tasks.identity)
        if begun_with not in ("", identity):
            raise ConfigurationError(
                f"{self.settings.output_dir} was begun with the data {begun_with}, now it is {identity}: name another "
                "output_dir, or begin anew with force_restart=true"
            )
        self.journal.note_fact("input", identity)
        await self._collect(tasks, identity, TRAIN, "")
        await asyncio.gather(*self._evaluations)

    async def _collect(self, tasks: TaskSource, identity: str, topics: tuple[str, str], version: str) -> None:
        actor, directory = self.settings.actor, self.settings.output_dir
        groups_topic, figures_topic = topics
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    write_to_streams(
                        SingleStreamSpec(directory, topic), backend=self.backend,
                        max_entry_bytes=actor.shared_memory_entry_size,
                    )
                )
                for topic in (groups_topic, figures_topic)
            ]  # fmt: skip
            self._take_over(groups_topic)
            outlet = Outlet(topic=groups_topic, groups=writers[0], figures=writers[1], journal=self.journal)
            loop = RCActorLoop(self.work, outlet, self._num_workers(), self._note_version)
            await loop.run(self._groups(tasks, identity, version, is_test=topics == TEST))

    def _num_workers(self) -> int:
        settings = self.settings
        return max(settings.actor.rollout_workers, math.ceil(settings.num_places / settings.group_size))

    def _take_over(self, topic: str) -> None:
        """Note the groups that lie in the stream, and that a killed process could not note any more."""
        spec, first = SingleStreamSpec(self.settings.output_dir, topic), self.journal.position(topic)
        with read_stream(spec, start=first, backend=self.backend) as reader:
            for entry in reader.entries():
                texts = entry.value if isinstance(entry.value, list) else []
                group = texts[0].get("group_id") if texts and isinstance(texts[0], dict) else None
                if isinstance(group, str) and not self.journal.has_ended(topic, group):
                    self.journal.published(topic, group, -1, entry.next)

    def _groups(self, tasks: TaskSource, identity: str, version: str, *, is_test: bool) -> Iterator[ProblemGroup]:
        for task in tasks:
            if isinstance(task, BadRow):
                _LOG.warning("passed over %s: %s", task.where, task.why)
                continue
            prompt = self._prompt(task, identity, version, is_test=is_test)
            yield ProblemGroup(task.number, prompt, self.journal.num_requeued(prompt.group_id))

    def _prompt(self, task: CollectTask, identity: str, version: str, *, is_test: bool) -> PromptSubmitted:
        settings, prompt_id = self.settings, "/".join(filter(None, (identity, version, str(task.number))))
        group, metadata = group_id(f"{_RUN}-{self.journal.token}", prompt_id, 0), dict(task.metadata)
        return PromptSubmitted(
            prompt_id=prompt_id,
            group_id=group,
            purpose=Purpose.SERVE,
            environment=settings.environment.name,
            messages=task.messages,
            reference_answer=task.reference_answer,
            sampling=settings.sampling(is_test=is_test),
            group_size=settings.group_size,
            agent=self.agent,
            metadata=metadata,
            source=PromptSource(dataset=metadata.get("dataset_name", identity), row=task.number),
            producer=_RUN,
            sequence=task.number,
            submitted_at=utc_now(),
        )

    def _note_version(self, texts: list[TrainingText]) -> None:
        newest = [text.metadata.get("model_version_newest") for text in texts]
        version = max((one for one in newest if isinstance(one, int)), default=0)
        if self.clock.is_due(version):
            task = asyncio.create_task(self._evaluate(version))
            self._evaluations.add(task)

    async def _evaluate(self, version: int) -> None:
        tasks = evaluation_problems(self.settings)
        if tasks is None:
            return
        identity = await asyncio.to_thread(tasks.identity)
        # One after the other: a stream has one writer.
        async with self._evaluating:
            await self._collect(tasks, identity, TEST, f"v{version}")
        self.journal.note_fact("evaluated", str(version))


def _known(agent: AgentChoice) -> AgentChoice:
    """Without options that say nothing."""
    return agent.model_copy(update={"options": {name: value for name, value in agent.options.items() if value}})


def run_actor(settings: RCSettings, stop: Stop, say: Say) -> int:
    """Run until all problems have ended, or `stop` is asked; the exit code.

    Raises `ConfigurationError` for a directory that was begun otherwise, `EngineDeadError` if no server answers.
    """
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    with held(settings.output_dir / _JOURNAL), ExitStack() as stack:
        journal = _journal(settings)
        stack.callback(journal.close)
        asyncio.run(_until_stopped(settings, journal, stop))
        for topic in (TRAIN[0], TEST[0]):
            num_published, num_failed = journal.num_ended(topic)
            if num_published or num_failed:
                say(f"{topic}: {num_published} groups are published, {num_failed} have failed")
        for failed in journal.failures():
            say(f"row {failed.row} of {failed.topic} has failed: {failed.failure}: {failed.message}")
    if stop.is_asked:
        say("stopped: the same command goes on from there")
        return _STOPPED
    return 0


def _journal(settings: RCSettings) -> ActorJournal:
    """The journal of the directory; raises `ConfigurationError` if it was begun with other settings."""
    path, streams = settings.output_dir / _JOURNAL, settings.output_dir / _STREAMS
    if settings.force_restart:
        for old in (path, *(path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm"))):
            old.unlink(missing_ok=True)
        shutil.rmtree(streams, ignore_errors=True)
    journal = ActorJournal(path)
    compared = json.dumps(_compared(settings), sort_keys=True)
    begun_with = journal.fact("begun_with")
    if begun_with is not None and begun_with != compared:
        before, now = json.loads(begun_with), json.loads(compared)
        key = next(name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name))
        journal.close()
        raise ConfigurationError(
            f"{settings.output_dir} was begun with {key} = {json.dumps(before.get(key))}, now it is "
            f"{json.dumps(now.get(key))}: go on with the same, name another output_dir, or begin anew with "
            "force_restart=true"
        )
    journal.note_fact("begun_with", compared)
    return journal


def _compared(settings: RCSettings) -> Mapping[str, Any]:
    """What a later process must have in common with the first: what decides the groups, not where servers run."""
    kept = {
        "model_path", "summarization_model_path", "llm", "test_llm", "summarization_llm", "seed", "attempts", "rewards",
    }  # fmt: skip
    scoring = settings.environment
    # Options of an environment may be secret.
    options = hashlib.sha256(json.dumps(dict(scoring.options), sort_keys=True).encode()).hexdigest()
    cycles = settings.actor.cycles()
    return {
        **settings.model_dump(mode="json", include=kept),
        "streams.backend": settings.streams.backend,
        "environment": [scoring.name, scoring.path, options],
        "actor.discount_factor": settings.actor.discount_factor,
        "actor.solution_rollout_policy": settings.actor.solution_rollout_policy,
        "actor.summarization_rollout_policy": settings.actor.summarization_rollout_policy,
        "actor.num_samples_per_problem": settings.actor.num_samples_per_problem,
        **{f"actor.{name}": value for name, value in settings.agent().options.items() if name != "summarizer"},
        "actor.use_think_tags": cycles.use_think_tags,
        "actor.system_prompt": settings.actor.system_prompt,
        "actor.task_template": settings.actor.task_template,
    }


async def _until_stopped(settings: RCSettings, journal: ActorJournal, stop: Stop) -> None:
    await first_to_end(stop.asked(), _open_and_run(settings, journal))


async def _open_and_run(settings: RCSettings, journal: ActorJournal) -> None:
    await wait_for_services(settings)
    async with AsyncExitStack() as stack:
        engine = build_engine(_engine(settings, settings.me.llm_urls, settings.model_path))
        await engine.start(weight_version=0)
        stack.push_async_callback(engine.close)
        others = await stack.enter_async_context(other_engines(_others(settings)))
        scoring = settings.environment
        declared = {scoring.name: Declaration.model_validate({"path": scoring.path, "options": scoring.options})}
        pool = await stack.enter_async_context(ScoringPool(PoolBounds(), declared))
        # An HTTP engine repeats a call itself, and knows better when.
        bounds = SampleBounds(deadline_seconds=_LONGEST_CALL_SECONDS, max_tries=1)
        agents = Agents(makers={"reasoning_cache": maker_with_policies(settings)})
        runner = SampleRunner(engine, identity=identity_of(engine, _RUN), bounds=bounds, agents=agents, others=others)
        in_flight = asyncio.Semaphore(settings.num_places)
        work = GroupWork(settings, settings.actor.cycles(), runner, journal, pool, in_flight)
        agent = _known(settings.agent(SUMMARIZER if settings.summarization_model_path else ""))
        clock = EvaluationClock(settings.eval_every_n_versions, int(journal.fact("evaluated") or 0))
        await Actor(settings, agent, journal, _backend(settings), work, clock).run()


def _backend(settings: RCSettings) -> StreamBackend:
    if settings.streams.backend == "files":
        return backend_named("files")
    if settings.streams.config is None:
        raise ConfigurationError("streams.backend kafka needs streams.config, the rollstream.toml of the run")
    # Imports the client of Kafka, which files do without.
    from rollstream.bus.run import Run
    from rollstream.rc_actor.kafka_streams import KafkaStreams

    return backend_named("kafka", KafkaStreams(Run(StageSettings.load(settings.streams.config))))


def _engine(settings: RCSettings, urls: str, model: str) -> EngineSettings:
    actor, addresses = settings.actor, split_urls(urls)
    most = actor.llm_max_rollouts if model == settings.model_path else actor.summarization_max_rollouts
    directory = Path(model)
    has_tokenizer = model == settings.model_path and (directory / "tokenizer.json").exists()
    http = HttpSettings(
        urls=addresses,
        model=model,
        api_key=key_of(settings),
        max_connections=most * len(addresses),
        most_per_server=most,
        request_seconds=_LONGEST_CALL_SECONDS,
        max_tries=actor.max_retries + 1,
        retry_seconds=actor.retry_base_delay,
        tokenizer_path=directory if has_tokenizer else None,
    )
    return EngineSettings.model_validate({"kind": "openai_http", "http": http})


def _others(settings: RCSettings) -> dict[str, EngineSettings]:
    if not settings.summarization_model_path:
        return {}
    return {SUMMARIZER: _engine(settings, settings.me.summarization_llm_urls, settings.summarization_model_path)}
