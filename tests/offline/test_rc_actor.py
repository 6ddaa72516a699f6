"""The Reasoning Cache actor against servers that drop, die and refuse: what is published, and what is asked again."""

import json
import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollstream.local.tiny_model import write_tokenizer
from rollstream.process.stop import Stop
from rollstream.rc_actor.actor import run_actor
from rollstream.rc_actor.lines import SingleStreamSpec
from rollstream.rc_actor.reading import read_settings
from rollstream.rc_actor.streams import backend_named, read_stream
from rollstream.rc_actor.training_text import BaseMetrics, RolloutResult
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, TooManyFailuresError
from tests.harness.fake_openai import FakeOpenAI, Planned, fake_openai
from tests.harness.forking import start_command
from tests.harness.waits import wait_until

TABLE = [("reasoning", 1), ("summarization", 1), ("reasoning", 2), ("summarization", 2)]
STEPS = len(TABLE)


def words(directory: Path, *servers: FakeOpenAI, rows: int = 4, **changes: object) -> list[str]:
    """The command line of a run of two cycles on so many problems."""
    data = directory / "problems.jsonl"
    lines = [{"problem": f"problem-{row}.", "answer": "yes"} for row in range(rows)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {
        "output_dir": directory / "out", "model_path": "tiny", "train_dataset_names": f"[{data}]",
        "me.llm_urls": "+".join(f"{server.url}/v1" for server in servers), "actor.num_reasoning_steps": 2,
        "environment.name": "sort_digits", "actor.retry_base_delay": 0, "me.ready_seconds": 5, **changes,
    }  # fmt: skip
    return [f"{name}={value}" for name, value in given.items()]


def ended(given: list[str]) -> tuple[int, list[str]]:
    said: list[str] = []
    return run_actor(read_settings("test_rc", given), Stop(), said.append), said


def groups(directory: Path, topic: str = "rc_actor") -> list[list[dict[str, Any]]]:
    with read_stream(SingleStreamSpec(directory / "out", topic), backend=backend_named("files")) as reader:
        found = list(reader.read())
        assert not reader.bad
        return found


def steps(directory: Path) -> Counter[tuple[str, int, int, str, int]]:
    """How often each step lies in the stream."""
    return Counter(
        (
            text["group_id"],
            text["metadata"]["sample_id"],
            text["metadata"]["rollout_index"],
            text["metadata"]["turn_type"],
            text["metadata"]["turn_number"],
        )
        for group in groups(directory)
        for text in group
    )


async def louder(cfg: Any, llm: Any, problem: dict[str, Any], session: Any) -> RolloutResult:
    """A policy of a person's own."""
    turn = await llm.generate(f"LOUD {problem['prompt']}")
    assert (cfg.model_path, session.turns[-1], problem["answer"]) == ("tiny", turn, "yes")
    metrics = BaseMetrics(reward=0.25, success=False, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[], metrics=metrics, latency=0.5)


async def silent(cfg: Any, llm: Any, problem: dict[str, Any], session: Any) -> RolloutResult:
    """It asks nothing."""
    metrics = BaseMetrics(reward=0.25, success=False, no_error=True, no_answer=False)
    return RolloutResult(training_texts=[], metrics=metrics, latency=0.5)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with fake_openai() as made:
        yield made


def test_each_problem_is_a_group_with_the_rows_of_the_document(server: FakeOpenAI, tmp_path: Path) -> None:
    code, said = ended(words(tmp_path, server, **{"attempts": 2, "actor.num_samples_per_problem": 2}))
    assert (code, said) == (0, ["rc_actor: 4 groups are published, 0 have failed"])
    found = groups(tmp_path)
    assert len(found) == 4
    for group in found:
        rows = [(text["metadata"]["turn_type"], text["metadata"]["turn_number"]) for text in group]
        assert rows == TABLE * 4
        assert len({text["group_id"] for text in group}) == 1
        samples = {(text["metadata"]["sample_id"], text["metadata"]["rollout_index"]) for text in group}
        assert samples == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {text["reward"] for group in found for text in group if text["metadata"]["turn_type"] == "reasoning"} == {
        1.0
    }
    assert len(server.asked) == 4 * 4 * STEPS


def test_problems_of_an_evaluation_go_to_a_stream_of_their_own(server: FakeOpenAI, tmp_path: Path) -> None:
    given = words(tmp_path, server, rows=3, eval_only="true")
    ended([*given, f"test_dataset_names=[{tmp_path / 'problems.jsonl'}]", "train_subset={begin: 0, end: 1}"])
    assert len(groups(tmp_path, "rc_actor_test")) == 3
    assert not (tmp_path / "out/streams/rc_actor").exists()


@pytest.mark.parametrize(("seconds", "is_said"), [(1e-6, True), (0, False)])
def test_figures_are_said_as_often_as_a_setting_says(
    seconds: float, is_said: bool, server: FakeOpenAI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rollstream.rc_actor")
    ended(words(tmp_path, server, rows=2, **{"actor.log_each_n_secs": f"{seconds:f}"}))
    said = [line for line in caplog.messages if "reasoning_turn_1/reward 1" in line]
    assert len(said) == (2 if is_said else 0)


def test_figures_by_turn_are_those_of_the_published_groups(server: FakeOpenAI, tmp_path: Path) -> None:
    server.answer = lambda body: "yes" if "problem-1" in str(body) else "no"
    ended(words(tmp_path, server, rows=2))
    with read_stream(SingleStreamSpec(tmp_path / "out", "rc_stats"), backend=backend_named("files")) as reader:
        figures = list(reader.read())
    by_group = [one["reasoning_turn_2/reward"] for one in figures]
    assert sorted(by_group) == [0.0, 1.0]
    assert figures[-1]["always_success"] == figures[-1]["never_success"] == 0.5
    assert {"summarization_turn_1/output_tokens", "throughput/reasoning_turns_per_second"} <= figures[-1].keys()


def test_the_same_command_asks_nothing_again_and_another_one_is_refused(server: FakeOpenAI, tmp_path: Path) -> None:
    given = words(tmp_path, server)
    ended(given)
    num_asked, found = len(server.asked), groups(tmp_path)
    assert ended(given)[0] == 0
    assert (len(server.asked), groups(tmp_path)) == (num_asked, found)
    with pytest.raises(ConfigurationError, match=r"begun with actor.num_reasoning_steps = .2., now it is .3."):
        ended([*given, "actor.num_reasoning_steps=3"])
    assert ended([*given, "actor.num_reasoning_steps=3", "force_restart=true"])[0] == 0
    assert len(groups(tmp_path)[0]) == STEPS + 2


def test_a_group_at_which_connections_drop_fails_with_its_class_and_the_others_finish(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    server.drops = lambda body: "problem-3." in str(body)
    code, said = ended(words(tmp_path, server, rows=100, **{"actor.max_retries": 0}))
    assert code == 0
    assert said[0] == "rc_actor: 99 groups are published, 1 have failed"
    assert said[1].startswith("row 3 of rc_actor has failed: engine: ")
    assert sum("problem-3." in str(one.body) for one in server.asked) == 11
    assert set(steps(tmp_path).values()) == {1}


def test_many_groups_that_nothing_comes_of_fail_and_do_not_keep_the_actor_from_its_end(
    server: FakeOpenAI, tmp_path: Path
) -> None:
    server.drops = lambda body: any(f"problem-{row}." in str(body) for row in range(0, 30, 2))
    code, said = ended(words(tmp_path, server, rows=30, **{"actor.max_retries": 0}))
    assert (code, said[0]) == (0, "rc_actor: 15 groups are published, 15 have failed")


def test_groups_that_wait_are_tried_before_new_ones_once_they_are_too_many_to_keep(
    server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollstream.rc_actor.loop._MOST_WAITING", 3)
    server.drops = lambda body: any(f"problem-{row}." in str(body) for row in range(3))
    code, said = ended(words(tmp_path, server, rows=60, **{"actor.max_retries": 0, "actor.problem_queue_size": 1}))
    assert (code, said[0]) == (0, "rc_actor: 57 groups are published, 3 have failed")
    rows = [next(row for row in range(60) if f"problem-{row}." in str(one.body)) for one in server.asked]
    again = next(place for place, row in enumerate(rows) if row < 3 and row in rows[:place])
    assert again < rows.index(59)


def test_where_nothing_comes_of_any_group_the_actor_ends_and_goes_on_later(server: FakeOpenAI, tmp_path: Path) -> None:
    server.planned.extend([Planned(status=500)] * 1000)
    given = words(tmp_path, server, rows=130, **{"actor.max_retries": 0})
    with pytest.raises(TooManyFailuresError, match="had no answer"):
        ended(given)
    server.planned.clear()
    assert ended(given) == (0, ["rc_actor: 130 groups are published, 0 have failed"])


def test_a_resume_with_other_rewards_is_refused(server: FakeOpenAI, tmp_path: Path) -> None:
    given = words(tmp_path, server, rows=1)
    ended(given)
    for change in ("rewards.wrong_answer_finished=-1", "actor.discount_factor=0.9", "environment.name=word_count"):
        with pytest.raises(ConfigurationError, match="was begun with"):
            ended([*given, change])


def test_a_step_that_is_refused_for_a_while_repeats_no_other_step(server: FakeOpenAI, tmp_path: Path) -> None:
    for status in (500, 429, 503):
        server.planned.append(Planned(status=status))
    ended(words(tmp_path, server, rows=1))
    assert len(server.asked) == STEPS + 3
    assert len(Counter(json.dumps(one.body["messages"]) for one in server.asked)) == STEPS


def test_a_prompt_that_a_server_refuses_fails_its_group_at_once(server: FakeOpenAI, tmp_path: Path) -> None:
    server.planned.append(Planned(status=400, message="maximum context length is 3 tokens"))
    _, said = ended(words(tmp_path, server, rows=2, **{"actor.llm_max_rollouts": 1}))
    assert said[0] == "rc_actor: 1 groups are published, 1 have failed"
    assert "row 0 of rc_actor has failed: prompt_too_long" in said[1]


def test_without_any_server_the_actor_ends_and_goes_on_later(server: FakeOpenAI, tmp_path: Path) -> None:
    with fake_openai() as other:
        given = words(tmp_path, other, **{"me.ready_seconds": 0.5})
    with pytest.raises(EngineDeadError, match="no server was ready"):
        ended(given)
    with fake_openai(other):
        assert ended(given)[0] == 0
    assert len(groups(tmp_path)) == 4


def test_one_of_two_servers_dies_and_the_other_has_never_more_than_its_bound(tmp_path: Path) -> None:
    with fake_openai(latency_seconds=0.05) as staying:
        dying = FakeOpenAI(latency_seconds=0.05)
        gone = threading.Event()

        def run_dying() -> None:
            with fake_openai(dying):
                wait_until(lambda: dying.num_model_calls > 20, "calls", 30)
            gone.set()

        thread = threading.Thread(target=run_dying)
        thread.start()
        wait_until(lambda: dying.port, "its port", 10)
        changes = {"actor.llm_max_rollouts": 3, "actor.max_retries": 20, "environment.name": "sort_digits"}
        code, said = ended(words(tmp_path, staying, dying, rows=30, **changes))
        thread.join()
    assert (code, said) == (0, ["rc_actor: 30 groups are published, 0 have failed"])
    assert staying.most_in_flight == dying.most_in_flight == 3
    assert gone.is_set()
    assert set(steps(tmp_path).values()) == {1}


def test_a_group_that_is_larger_than_an_entry_fails_and_the_others_go_on(server: FakeOpenAI, tmp_path: Path) -> None:
    server.answer = lambda body: "long " * 1000 if "problem-2" in str(body) else "yes"
    _, said = ended(words(tmp_path, server, **{"actor.shared_memory_entry_size": 8192}))
    assert said[0] == "rc_actor: 3 groups are published, 1 have failed"
    assert "too_large" in said[1]
    assert "shared_memory_entry_size" in said[1]


def test_a_policy_of_a_persons_own_takes_the_step_and_gives_its_reward(server: FakeOpenAI, tmp_path: Path) -> None:
    changes = {"actor.solution_rollout_policy": f"{__name__}.louder"}
    ended(words(tmp_path, server, rows=1, **changes))
    asked = [one.body["messages"][-1]["content"] for one in server.asked]
    assert [text.startswith("LOUD") for text in asked] == [True, False, True, False]
    [group] = groups(tmp_path)
    assert [text["reward"] for text in group] == [0.25, 0.0, 0.25, 0.0]
    assert [text["metadata"]["turn_number"] for text in group] == [1, 1, 2, 2]


def test_a_policy_that_asks_nothing_fails_its_groups_and_says_why(server: FakeOpenAI, tmp_path: Path) -> None:
    changes = {"actor.summarization_rollout_policy": f"{__name__}.silent"}
    _, said = ended(words(tmp_path, server, rows=1, **changes))
    assert "the policy of summarization asked llm.generate 0 times, it must do so once" in said[1]


def test_test_problems_are_asked_once_for_so_many_versions_and_tokens_say_which_ones(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_tokenizer(model, max_length=512)
    with fake_openai(kind="vllm", models=(str(model),), weight_version="7", reports_spans=True) as server:
        changes = {"model_path": model, "eval_every_n_versions": 5, "actor.use_think_tags": "true"}
        given = words(tmp_path, server, rows=3, **changes)
        ended([*given, f"test_dataset_names=[{tmp_path / 'problems.jsonl'}]"])
    tested = groups(tmp_path, "rc_actor_test")
    assert len(tested) == 3, "one evaluation, of version 7"
    for text in tested[0]:
        assert (text["metadata"]["model_version"], text["metadata"]["has_token_ids"]) == (7, True)
        assert text["labels"] == [-100] * text["prompt_tokens"] + text["input_ids"][text["prompt_tokens"] :]
        assert len(text["logprobs"]) == text["output_tokens"] == 4


AT_RANDOM = [f"after {random.Random(seed).randrange(1, 4 * STEPS - 1)}" for seed in range(20)]


@pytest.mark.parametrize(
    "crash_at",
    [
        *("group_written:1", "group_written:3", "after 2", "after 7", "after 11"),
        *(pytest.param(point, marks=pytest.mark.slow) for point in AT_RANDOM),
    ],
)
def test_killed_anywhere_the_same_command_goes_on_and_asks_no_finished_step_again(
    tmp_path: Path, crash_at: str
) -> None:
    with fake_openai(latency_seconds=0.1) as server:
        given = words(tmp_path, server, **{"actor.llm_max_rollouts": 2})
        point = {} if crash_at.startswith("after") else {"ROLLSTREAM_CRASH_AT": crash_at}
        dying = start_command("rc-actor", *given, log=tmp_path / "log", env=point)
        if not point:
            count = int(crash_at.split()[1])
            wait_until(lambda: server.num_model_calls > count, dying.said)
            dying.kill()
        assert dying.wait() < 0
        assert ended(given)[0] == 0
    found = steps(tmp_path)
    assert (len(found), set(found.values())) == (4 * STEPS, {1})
    # At most what was in flight, or had ended within the last moment.
    assert len(server.asked) - 4 * STEPS <= 4
