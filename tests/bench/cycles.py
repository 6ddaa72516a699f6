"""`python -m tests.bench cycles`: whether a policy learns to reason in cycles, by trajectories and by states."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Final, Literal

import click

from rollstream.bus.deliveries import Deliveries
from rollstream.bus.publisher import Publisher
from rollstream.client.evaluate import evaluate
from rollstream.client.evaluation import EvaluationRequest
from rollstream.environments.protocol import Task
from rollstream.environments.running_sum import REASONING_TEMPLATE, SUMMARIZATION_TEMPLATE, RunningSum
from rollstream.local.demo import options
from rollstream.schemas.errors import BrokenWorldError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import AgentChoice, PromptSubmitted, Purpose
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import EVAL_SCORED, SERVE_PROMPTS
from tests.bench.pairs import count_option, say, scratch, tell
from tests.bench.whole_loop import WholeLoop, a_whole_loop

GAIN: Final = 0.3
_STALLED_SECONDS: Final = 240.0
_CYCLES: Final = AgentChoice(name="reasoning_cache")
_ONE_CYCLE: Final = AgentChoice(name="reasoning_cache", options={"num_reasoning_steps": "1"})
_STEPS_AHEAD: Final = 4
"""Steps for which a client asks cycles before their states are trained on."""
_STATES: Final = 3
"""Of a rollout that train."""

Way = Literal["trajectories", "states"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    seed: int
    steps: int
    groups: int
    prompts: int


@dataclass(slots=True)
class _Learned:
    """Mean rewards of held-out problems: of three cycles, of one, and of three by the number of the reasoning turn."""

    cycles: float
    one_cycle: float
    by_turn: dict[int, float] = field(default_factory=dict)


@click.command("cycles")
@click.option("--way", type=click.Choice(["trajectories", "states"]), multiple=True, default=["trajectories", "states"])
@count_option("--seeds", 3, 1, "Runs each way, each with a model and problems of its own.")
@count_option("--first-seed", 0, 0, "Of these runs the first.")
@count_option("--steps", 300, 1, "Optimizer steps of a run.")
@count_option("--groups", 16, 1, "Groups of a step, of 16 samples each.")
@count_option("--prompts", 256, 1, "Held-out problems, each answered greedily before and after.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw rewards by turn number there.")
def command(way: tuple[Way, ...], seeds: int, first_seed: int, plot: Path | None, **shape: int) -> None:
    """Held-out reward of three cycles after training, less that before. Target: a gain of 0.3 under each seed.

    The task needs three cycles: an answer adds up two of six digits. The whole stack: Kafka, a generator with vLLM,
    the scorer, the trainer; with states also their producer, and a client that asks cycles on the lane for clients.
    """
    found: dict[str, list[tuple[_Learned, _Learned]]] = {one: [] for one in way}
    with scratch() as directory:
        for seed in range(first_seed, first_seed + seeds):
            _warm_up(directory / f"{seed}-model", seed)
            for one in way:
                (run_dir := directory / f"{seed}-{one}").mkdir()
                before, after = _run(run_dir, directory / f"{seed}-model", one, _Shape(seed=seed, **shape))
                say(f"{one}, seed {seed}: {before} -> {after}")
                found[one].append((before, after))
                shutil.rmtree(run_dir)
    if plot is not None:
        _draw(found, plot)
    figures = {one: [_figures(*pair) for pair in pairs] for one, pairs in found.items()}
    tell("cycles", {"target_gain": GAIN, **figures}, {"seeds": seeds, "first_seed": first_seed, **shape})


def _figures(before: _Learned, after: _Learned) -> dict[str, Any]:
    named = {
        "cycles": [before.cycles, after.cycles],
        "one_cycle": [before.one_cycle, after.one_cycle],
        **{f"turn_{number}": [before.by_turn.get(number, 0.0), reward] for number, reward in after.by_turn.items()},
    }
    return {
        "gain": round(after.cycles - before.cycles, 3),
        **{name: [*map(_rounded, two)] for name, two in named.items()},
    }


def _rounded(value: float) -> float:
    return round(value, 3)


def _warm_up(model: Path, seed: int) -> None:
    command = [
        sys.executable, "-m", "rollstream.cli.main", "sft", "--tiny-model", "--environment", "running_sum_turns",
        "--until-accuracy", "0.75", "--max-steps", "3000", "--seed", str(seed), "--threads", "1",
        "--output", str(model),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=sys.stderr)


def _run(run_dir: Path, model: Path, way: Way, shape: _Shape) -> tuple[_Learned, _Learned]:
    with a_whole_loop(run_dir, _settings(run_dir, model, way, shape), poses=False) as loop:
        loop.until(lambda: loop.watch.state.version_applied is not None, "version 0", _STALLED_SECONDS)
        before = _learned(loop, 0, shape)
        loop.start_producer()
        with loop.run.publisher("bench") as publisher:
            client = _Client(loop, publisher, shape)
            asks = client.ask if way == "states" else lambda: None
            loop.until(lambda: asks() or loop.watch.state.step >= shape.steps, "the last step", _STALLED_SECONDS)
        newest = loop.watch.state.version_published or 0
        loop.until(lambda: loop.watch.state.version_applied == newest, f"version {newest}", _STALLED_SECONDS)
        return before, _learned(loop, newest, shape)


def _settings(run_dir: Path, model: Path, way: Way, shape: _Shape) -> dict[str, Any]:
    """Those of the demo, with the agent; its templates are the environment's."""
    by_turns = way == "trajectories"
    templates = {
        "reasoning_prompt_template": REASONING_TEMPLATE,
        "summarization_prompt_template": SUMMARIZATION_TEMPLATE,
    }
    producer: dict[str, Any] = {"source": "states", "states": {"per_rollout": _STATES}}
    if by_turns:
        producer = {"environment": RunningSum.name, "agent": {"name": _CYCLES.name}}
    return {
        "groups_per_step": shape.groups,
        "max_policy_lag": options.MAX_POLICY_LAG,
        "agents": {_CYCLES.name: {"options": templates}},
        "producer": {"seed": shape.seed, "group_size": options.GROUP_SIZE, **producer},
        "generator": {
            "engine": {"kind": "vllm", "model_path": str(model), "max_model_len": 64, "max_num_seqs": 256},
        },
        "scorer": {"session_timeout_seconds": 10, "batch_deadline_seconds": 8, "load_deadline_seconds": 8},
        "trainer": {
            "model_path": str(model),
            "checkpoints": str(run_dir / "checkpoints"),
            "num_steps": shape.steps,
            "checkpoint_every": options.CHECKPOINT_EVERY,
            # Else nothing says that an answer should end.
            "train_truncated": True,
            "credit": "turn" if by_turns else "rollout",
            "learning": {
                "learning_rate": options.LEARNING_RATE, "beta2": 0.99, "weight_decay": 0.0, "warmup_steps": 10,
                "minibatches": 1, "old": "behavior", "threads": 1, "seed": shape.seed,
                "scale_advantages": "none" if by_turns else "group",
            },
        },
    }  # fmt: skip


@dataclass(slots=True)
class _Client:
    """Asks cycles on the lane for clients, a few steps ahead of training."""

    loop: WholeLoop
    publisher: Publisher
    shape: _Shape
    num_asked: int = 0
    _tasks: Iterator[Task] | None = None

    def ask(self) -> None:
        state = self.loop.watch.state
        # Also groups without spread use up states.
        closed = state.groups_trained + state.groups_dropped
        wanted = (closed + _STEPS_AHEAD * self.shape.groups) // _STATES
        tasks = self._tasks or RunningSum().tasks("train", self.shape.seed)
        self._tasks, deliveries = tasks, Deliveries()
        for task in islice(tasks, max(0, wanted - self.num_asked)):
            self.num_asked += 1
            record = self.loop.run.out_record(SERVE_PROMPTS, self._prompt(task))
            self.publisher.send_blocking(record, deliveries)
        deliveries.wait()

    def _prompt(self, task: Task) -> PromptSubmitted:
        return PromptSubmitted(
            prompt_id=f"bench/{task.task_id}",
            group_id=group_id(self.loop.run.name, f"bench/{task.task_id}", 0),
            purpose=Purpose.SERVE,
            environment=RunningSum.name,
            messages=task.messages,
            reference_answer=task.reference_answer,
            sampling=RunningSum.sampling,
            group_size=1,
            agent=_CYCLES,
            producer="bench",
            sequence=self.num_asked,
            submitted_at=utc_now(),
        )


def _learned(loop: WholeLoop, version: int, shape: _Shape) -> _Learned:
    ends = loop.run.ends(EVAL_SCORED)
    found = _Learned(_reward(loop, version, shape, _CYCLES), 0.0)
    rewards: dict[int, list[float]] = {}
    with loop.run.reader(EVAL_SCORED, start=ends) as reader:
        for message in reader.to_end():
            scored = loop.run.decoded(EVAL_SCORED, message)
            for score in () if scored is None else scored.scoring.turn_scores:
                number = scored.rollout.turns[score.turn].turn_number if scored is not None else 0
                rewards.setdefault(number, []).append(score.reward or 0.0)
    found.by_turn = {number: mean(of_turn) for number, of_turn in sorted(rewards.items())}
    found.one_cycle = _reward(loop, version, shape, _ONE_CYCLE)
    return found


def _reward(loop: WholeLoop, version: int, shape: _Shape, agent: AgentChoice) -> float:
    request = EvaluationRequest(
        environment=RunningSum.name, weight_version=version, agent=agent, num_prompts=shape.prompts
    )
    report = evaluate(loop.run, request)
    if report.mean_reward is None or report.num_completed < shape.prompts:
        raise BrokenWorldError(f"version {version} answered {report.num_completed} problems: {report.failures}")
    return report.mean_reward


def _draw(found: dict[str, list[tuple[_Learned, _Learned]]], path: Path) -> None:
    """A line for each way, before and after: the mean reward of each reasoning turn over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4), constrained_layout=True)
    for color, (way, pairs) in zip(("tab:blue", "tab:green"), found.items(), strict=False):
        for when, style, number in (("before", ":", 0), ("after", "-", 1)):
            turns = sorted(pairs[0][number].by_turn)
            rewards = [mean(pair[number].by_turn[turn] for pair in pairs) for turn in turns]
            axis.plot(turns, rewards, style, color=color, marker="o", label=f"{way}, {when}")
    axis.set_xlabel("reasoning turn")
    axis.set_ylabel("reward")
    axis.set_xticks(sorted({turn for pairs in found.values() for turn in pairs[0][1].by_turn}))
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
