"""Source document 000's script as a command (W4 to W8, W11, W13), against a fake of somebody else's server."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from datasets import load_from_disk

from rollstream.cli import compare_rollouts
from rollstream.cli.word_count_rollouts import command
from rollstream.offline.presets import word_count
from rollstream.offline.presets.mock import answer_to
from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError, RefusedKeyError
from tests.harness.fake_openai import WITHOUT_DATABASE, Planned, fake_openai
from tests.harness.forking import start_command

COLUMNS = [
    "prompt",
    "completion",
    "reward",
    "exact_match_reward",
    "format_reward",
    "partial_credit_reward",
    "answer",
    "info",
    "metadata",
]
FIRST_COUNTS = [45, 12, 6, 22, 20, 19, 13, 11, 48, 39]


def asked_words(body: dict[str, Any]) -> int:
    return len(body["messages"][-1]["content"].partition("\n\n")[2].split())


def in_tags(count: int) -> str:
    return f"<word_count>\n{count}\n</word_count>"


def right(body: dict[str, Any]) -> str:
    return in_tags(asked_words(body))


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("API_BASE_URL", raising=False)
    monkeypatch.delenv("LITELLM_API_KEY", raising=False)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def a_proxy(answer: Callable[[dict[str, Any]], str] = right, **behavior: Any) -> Any:
    return fake_openai(kind="litellm", models=("claude-sonnet",), answer=answer, **behavior)


def lines_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_the_documents_run_writes_its_columns_as_a_directory_and_as_jsonl_and_prints_its_block() -> None:
    with a_proxy() as proxy:
        ended = run("--num-examples", "10", "--base-url", proxy.url)
    assert ended.exit_code == 0, ended.output
    dataset = load_from_disk("./rollouts")
    assert dataset.column_names == COLUMNS
    assert [row["info"]["word_count"] for row in dataset] == FIRST_COUNTS
    assert lines_of("rollouts.jsonl") == [dict(row) for row in dataset]
    first = dataset[0]
    assert (first["answer"], first["reward"], first["exact_match_reward"]) == ("45", 1.3, 1.0)
    assert (first["format_reward"], first["partial_credit_reward"]) == (1.0, 1.0)
    assert [message["role"] for message in first["prompt"]] == ["system", "user"]
    assert first["completion"] == [{"role": "assistant", "content": in_tags(45)}]
    assert first["metadata"]["user_id"] == "rollstream"
    assert len({row["metadata"]["session_id"] for row in dataset}) == 10
    assert {path.name for path in Path("rollouts").iterdir()} >= {"dataset_info.json", "data-00000-of-00001.arrow"}
    assert f"Generating 10 rollouts via {proxy.url}\nCalling model claude-sonnet..." in ended.output
    assert (
        "10 rollouts saved in: rollouts and rollouts.jsonl\n\nStatistics:\n   Reward mean: 1.300\n"
        "   Reward std: 0.000 (population)\n   Min: 1.300\n   Max: 1.300\n\nExample rollout:\n"
        "   Prompt: Count the number of words in the following text: word word"
    ) in ended.output
    assert "   Completion: <word_count> 45 </word_count>\n   Reward: 1.30" in ended.output
    assert "is low" not in ended.output, "good rewards need no advice"
    # LiteLLM's GET /health would have asked the model too.
    assert proxy.num_model_calls == 10
    assert "GET /health" not in proxy.routes
    assert "GET /health/readiness" in proxy.routes


def off(body: dict[str, Any]) -> str:
    """45 and 12 are right, 6 and 22 off by one, 20 off by two, 19 off by five, 13 without tags, the rest no number."""
    count = asked_words(body)
    answers = {45: 45, 12: 12, 6: 7, 22: 21, 20: 22, 19: 24}
    if count in answers:
        return in_tags(answers[count])
    return f"{count}" if count == 13 else "<word_count>many words</word_count>"


def test_the_block_equals_numpy_on_the_column_and_the_documents_snippets_run() -> None:
    with a_proxy(off) as proxy:
        ended = run("--num-examples", "10", "--base-url", proxy.url)
    dataset = load_from_disk("./rollouts")
    rewards = [1.3, 1.3, 0.25, 0.25, 0.22, 0.2, 0.0, 0.2, 0.2, 0.2]
    assert dataset["reward"][:] == pytest.approx(rewards)
    block = [float(one) for one in re.findall(r"^   (?:Reward mean|Reward std|Min|Max): ([0-9.]+)", ended.output, re.M)]
    column = np.array(dataset["reward"][:])
    assert block == [round(float(one), 3) for one in (column.mean(), column.std(), column.min(), column.max())]
    # The document's own lines.
    assert f"{sum(dataset['reward']) / len(dataset):.3f}" == f"{np.mean(rewards):.3f}"
    high_quality = dataset.filter(lambda x: x["reward"] > 1.0)
    high_quality.save_to_disk("./rollouts_filtered")
    assert f"{len(high_quality)}/{len(dataset)}" == "2/10"
    assert load_from_disk("./rollouts_filtered")["answer"][:] == ["45", "12"]


def test_low_rewards_are_followed_by_the_documents_advice() -> None:
    with a_proxy(lambda body: "I counted 3 words") as proxy:
        ended = run("--num-examples", "4", "--base-url", proxy.url)
    assert ended.exit_code == 0
    assert "The mean reward 0.000 is low: the best is 1.3." in ended.output
    assert "are in 0% of the answers" in ended.output
    assert "column `completion`; one of the worst: I counted 3 words" in ended.output
    assert "adjust" in ended.output


NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("variables", "ending", "key"),
    [
        ({}, "", "dummy"),
        ({}, "/v1/", "dummy"),
        ({"API_BASE_URL": "URL", "LITELLM_API_KEY": "sk-proxy-key-1"}, None, "sk-proxy-key-1"),
        ({"API_BASE_URL": NOBODY}, "", "dummy"),
    ],
    ids=["typed", "with v1", "of the environment", "typed before the environment's"],
)
def test_the_server_is_the_typed_one_or_the_environments_and_gets_its_key_or_any(
    variables: dict[str, str], ending: str | None, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_proxy(api_key=key) as proxy:
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("URL", proxy.url))
        ended = run("--num-examples", "2", *([] if ending is None else ["--base-url", proxy.url + ending]))
    assert ended.exit_code == 0, ended.output
    assert {(one.path, one.authorization) for one in proxy.asked} == {("/v1/chat/completions", f"Bearer {key}")}
    assert proxy.num_model_calls == 2
    assert "sk-proxy-key-1" not in ended.output + "".join(path.read_text() for path in Path().glob("*.json*"))


def test_a_proxy_that_refuses_the_key_is_told_with_the_variable_that_holds_it() -> None:
    # What LiteLLM without a database answers to a key that it does not know.
    with a_proxy() as proxy:
        proxy.planned.extend([WITHOUT_DATABASE] * 2)
        ended = run("--num-examples", "2", "--base-url", proxy.url)
    assert isinstance(ended.exception, RefusedKeyError)
    assert "LITELLM_API_KEY" in str(ended.exception)


def test_a_url_with_and_without_v1_is_the_same_server() -> None:
    with a_proxy() as proxy:
        assert run("--num-examples", "2", "--base-url", proxy.url).exit_code == 0
        again = run("--num-examples", "2", "--base-url", f"{proxy.url}/v1")
    assert again.exit_code == 0, again.exception
    assert proxy.num_model_calls == 2


def test_a_url_with_a_password_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_BASE_URL", NOBODY.replace("//", "//me:sekret@"))
    ended = run("--num-examples", "2")
    assert isinstance(ended.exception, ConfigurationError)
    assert "sekret" not in ended.output + str(ended.exception)
    assert not list(Path().iterdir())


def test_a_wrong_alias_gives_the_proxys_message_and_no_rollout_with_reward_0() -> None:
    with a_proxy() as proxy:
        ended = run("--num-examples", "3", "--base-url", proxy.url, "--model", "claude-sonet")
    assert isinstance(ended.exception, BrokenWorldError)
    assert "none of 3 rollouts got a reward" in str(ended.exception)
    assert "The model `claude-sonet` does not exist." in str(ended.exception)
    assert [path.name for path in Path().iterdir()] == ["rollouts_failures.jsonl"], "the next run begins anew"
    assert not Path("rollouts").exists()
    assert not Path("rollouts.jsonl").exists()


def test_many_429s_end_with_every_row_once_and_never_more_than_two_in_flight() -> None:
    with a_proxy(latency_seconds=0.02) as proxy:
        for _ in range(10):
            proxy.planned.append(Planned(status=429, message="slow down", headers={"Retry-After": "0"}))
        ended = run("--num-examples", "20", "--base-url", proxy.url)
    assert ended.exit_code == 0, ended.output
    assert (proxy.most_in_flight, proxy.num_model_calls, len(proxy.asked)) == (2, 20, 30)
    dataset = load_from_disk("rollouts")
    assert len(dataset) == 20
    assert dataset["reward"][:] == [1.3] * 20
    assert [row["info"]["word_count"] for row in dataset][:10] == FIRST_COUNTS


def test_a_silent_server_ends_with_the_documents_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(word_count._SERVER, "ready_seconds", 0.2)
    with a_proxy() as proxy:
        url = proxy.url
    ended = run("--num-examples", "2", "--base-url", url)
    assert isinstance(ended.exception, BrokenWorldError)
    for told in (f"{url} does not answer", f"curl {url}/health/readiness", "litellm --config", "--debug"):
        assert told in str(ended.exception)


def test_rows_that_failed_are_left_out_and_listed_and_the_same_command_asks_them_alone() -> None:
    with a_proxy() as proxy:
        # The first request is refused for good.
        proxy.planned.append(Planned(status=400, message="the content filter refused"))
        ended = run("--num-examples", "5", "--concurrency", "1", "--base-url", proxy.url)
        assert ended.exit_code == 0, ended.output
        assert [row["answer"] for row in lines_of("rollouts.jsonl")] == ["12", "6", "22", "20"]
        assert load_from_disk("rollouts")["answer"][:] == ["12", "6", "22", "20"]
        assert "1 without a response" in ended.output
        assert "rollouts_failures.jsonl" in ended.output
        assert "the content filter refused" in ended.output
        [failure] = lines_of("rollouts_failures.jsonl")
        assert (failure["data_idx"], failure["stage"]) == (0, "generation")
        again = run("--num-examples", "5", "--concurrency", "1", "--base-url", proxy.url)
        assert again.exit_code == 0, again.output
        assert len(proxy.asked) == 6
        assert [row["answer"] for row in lines_of("rollouts.jsonl")] == ["45", "12", "6", "22", "20"]
        third = run("--num-examples", "5", "--concurrency", "1", "--base-url", proxy.url)
    assert "rollouts is complete" in third.output
    assert "5 rollouts saved in" in third.output
    assert len(proxy.asked) == 6


def test_other_settings_need_another_output_or_overwrite() -> None:
    with fake_openai(kind="litellm", models=("claude-sonnet", "claude-haiku"), answer=right) as proxy:
        words = ["--num-examples", "2", "--base-url", proxy.url]
        assert run(*words).exit_code == 0
        refused = run(*words, "--model", "claude-haiku")
        assert isinstance(refused.exception, ConfigurationError)
        assert "claude-haiku" in str(refused.exception)
        assert run(*words, "--model", "claude-haiku", "--overwrite").exit_code == 0
        assert run(*words, "--model", "claude-haiku", "--output", "rollouts_api").exit_code == 0
    assert load_from_disk("rollouts_api").column_names == COLUMNS


def test_a_file_of_somebody_else_is_not_replaced() -> None:
    Path("rollouts.jsonl").write_text("mine\n")
    refused = run("--mock", "--num-examples", "2", "--output", "rollouts")
    assert isinstance(refused.exception, ConfigurationError)
    assert Path("rollouts.jsonl").read_text() == "mine\n"


def test_mock_rollouts_need_no_server_are_the_same_each_time_and_have_mixed_rewards() -> None:
    # A directory of that name is no file of prompts.
    Path("word_count").mkdir()
    ended = run("--mock", "--num-examples", "100")
    assert ended.exit_code == 0, ended.output
    dataset = load_from_disk("rollouts_mock")
    assert dataset.column_names == COLUMNS
    rewards = dataset["reward"][:]
    assert 0.6 <= rewards.count(1.3) / 100 <= 0.8
    assert {round(reward, 6) for reward in rewards} <= {1.3, 0.25, 0.22, 0.0}
    assert len(set(rewards)) > 1
    assert run("--mock", "--num-examples", "100", "--output", "again").exit_code == 0
    assert load_from_disk("again")["completion"][:] == dataset["completion"][:]


def test_the_jsonl_alone_is_written_where_the_output_is_one() -> None:
    assert run("--mock", "--num-examples", "3", "--output", "rollouts_custom.jsonl").exit_code == 0
    assert list(lines_of("rollouts_custom.jsonl")[0]) == COLUMNS
    assert not Path("rollouts_custom").exists()


def test_a_missing_module_of_an_environment_is_answered_with_what_to_install() -> None:
    ended = run("--mock", "--environment", "my_word_count.WordCount", "--output", "rollouts_custom")
    assert isinstance(ended.exception, ConfigurationError)
    assert "No module named 'my_word_count'" in str(ended.exception)
    assert "uv pip install -e ." in str(ended.exception)


def test_an_environment_of_ones_own_gets_columns_for_its_own_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own_environment.py").write_text(
        "from rollstream.environments.word_count import WordCount\n"
        "from rollstream.environments.rubric import Rubric, WeightedReward\n"
        "class Short(WordCount):\n"
        "    rubric = Rubric(WeightedReward('brevity', lambda sample: 1 / len(sample.completion)))\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    ended = run(
        "--mock", "--environment", "own_environment.Short", "--num-examples", "3", "--output", "rollouts_custom"
    )
    assert ended.exit_code == 0, ended.output
    dataset = load_from_disk("rollouts_custom")
    assert dataset.column_names == [*COLUMNS[:3], "brevity_reward", *COLUMNS[6:]]
    for row in dataset:
        assert row["reward"] == pytest.approx(1 / len(row["completion"][0]["content"]))
    assert "is low" not in ended.output, "1.3 is the best of word_count only"


def test_two_runs_are_compared_by_example() -> None:
    with a_proxy(off) as before, a_proxy() as after:
        assert run("--num-examples", "6", "--base-url", before.url, "--output", "before").exit_code == 0
        assert run("--num-examples", "6", "--base-url", after.url, "--output", "after").exit_code == 0
    found = CliRunner().invoke(compare_rollouts.command, ["before", "after.jsonl", "--json"])
    deltas = json.loads(found.output)
    expected = [1.3 - reward for reward in (1.3, 1.3, 0.25, 0.25, 0.22, 0.2)]
    assert sorted(one["delta"] for one in deltas["examples"]) == pytest.approx(sorted(expected))
    assert deltas["mean_delta"] == pytest.approx(sum(expected) / 6)


def test_twenty_rollouts_of_seventeen_prompts_are_twenty_examples() -> None:
    assert run("--mock", "--num-examples", "20", "--output", "before.jsonl").exit_code == 0
    found = CliRunner().invoke(compare_rollouts.command, ["before.jsonl", "before.jsonl", "--json"])
    rewards = [row["reward"] for row in lines_of("before.jsonl")]
    assert json.loads(found.output)["num_matched"] == 20
    assert json.loads(found.output)["mean_before"] == pytest.approx(sum(rewards) / 20)


def test_a_run_that_is_killed_while_it_replaces_its_directory_asks_nothing_again(tmp_path: Path) -> None:
    with a_proxy() as proxy:
        words = [
            "--num-examples",
            "5",
            "--concurrency",
            "1",
            "--base-url",
            proxy.url,
            "--output",
            f"{tmp_path}/rollouts",
        ]
        proxy.planned.append(Planned(status=400, message="the content filter refused"))
        assert run(*words).exit_code == 0
        killed = start_command(
            "word-count-rollouts", *words, log=tmp_path / "log", env={CRASH_AT: "output_moved_aside"}
        )
        assert killed.wait(60) == -signal.SIGKILL, killed.said()
        assert not Path("rollouts").exists()
        num_asked = len(proxy.asked)
        ended = run(*words)
        assert ended.exit_code == 0, ended.output
        assert len(proxy.asked) == num_asked == 6
    assert load_from_disk("rollouts")["answer"][:] == ["45", "12", "6", "22", "20"]
    assert [row["answer"] for row in lines_of("rollouts.jsonl")] == ["45", "12", "6", "22", "20"]
    assert not [path.name for path in Path().iterdir() if path.name.startswith(".")]


def test_the_mocks_answers_depend_on_the_question_and_the_seed_alone() -> None:
    question = "Count the number of words in the following text:\n\n" + "word " * 12
    answers = {answer_to(question, seed) for seed in range(200)}
    assert answers == {in_tags(12), in_tags(13), in_tags(14), "12 words"}
    assert answer_to(question, 3) == answer_to(question, 3)
