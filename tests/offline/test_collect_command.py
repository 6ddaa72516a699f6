"""`rollstream collect` as people call it: a file or an environment, an engine of a settings file or of options."""

from pathlib import Path

import datasets
import pytest
from click.testing import CliRunner

from rollstream.cli.collect import command
from rollstream.cli.collecting import job_of
from rollstream.environments.sort_digits import SortDigits
from rollstream.offline.options import CollectOptions
from rollstream.process.settings.declared import Declaration
from rollstream.process.stop import Stop
from rollstream.rows.write import kind_of
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.prompt import Sampling
from tests.harness.collecting import a_job, lines_of, some_prompts
from tests.harness.fake_openai import fake_openai
from tests.harness.unruly_environment import NAME, PATH


def run(tmp_path, source, **fields):
    said = []
    report = a_job(source, **{"output": tmp_path / "out.jsonl", **fields}).run(Stop(), said.append)
    return report, "\n".join(said)


def test_tasks_of_an_environment_are_scored_by_it_and_sampled_as_it_says(tmp_path):
    report, said = run(tmp_path, "sort_digits", num_tasks=20, num_samples=2, seed=3)
    rows = lines_of(tmp_path / "out.jsonl")
    assert len(rows) == 40
    assert {row["max_tokens"] for row in rows} == {12}
    assert all(row["reward"] == float(row["response"] == row["original_reference_answer"]) for row in rows)
    assert rows[0]["prompt"][0]["role"] == "user"
    assert "reward of 40: mean" in said
    assert report.exit_code == 0


def test_the_same_seed_gives_the_same_answers_and_samples_of_a_task_differ(tmp_path):
    for name in ("one", "other"):
        run(tmp_path, "sort_digits", num_tasks=20, num_samples=4, seed=3, output=tmp_path / f"{name}.jsonl")
    one, other = ([row["response"] for row in lines_of(tmp_path / f"{name}.jsonl")] for name in ("one", "other"))
    assert one == other
    assert any(len(set(one[start : start + 4])) > 1 for start in range(0, 80, 4))


def test_other_options_of_an_environment_are_another_input(tmp_path):
    def of(count):
        declared = {"word_count": Declaration(options={"num_examples": str(count)})}
        return run(tmp_path, "word_count", environments=declared, environment="")

    of(3)
    with pytest.raises(ConfigurationError, match="begun with input ="):
        of(4)


def test_a_file_is_scored_by_the_environment_that_is_named_and_else_not(tmp_path):
    source = some_prompts(tmp_path / "data.jsonl", 5)
    run(tmp_path, source, environment="sort_digits", output=tmp_path / "scored")
    scored = datasets.load_from_disk(str(tmp_path / "scored"))
    assert {"reward", "reward_exact_match", "response", "original_answer"} <= set(scored.column_names)
    assert all(reward in (0.0, 1.0) for reward in scored["reward"])
    run(tmp_path, source)
    assert "reward" not in lines_of(tmp_path / "out.jsonl")[0]


def test_what_is_neither_a_file_nor_an_environment_is_refused_and_so_is_an_unknown_ending(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'nowhere\.jsonl' is neither a file here nor an environment"):
        run(tmp_path, "nowhere.jsonl")
    with pytest.raises(ConfigurationError, match=r"must end in \.jsonl or \.parquet"):
        kind_of(tmp_path / "out.csv")


class Endless(SortDigits):
    """Wants more tokens than a record holds."""

    sampling = Sampling(max_tokens=2**21)


def test_what_an_environment_of_ones_own_wants_beyond_the_bounds_is_refused_unless_an_option_says_less(tmp_path):
    declared = {"endless": Declaration(path=f"{__name__}.Endless")}
    with pytest.raises(ConfigurationError, match=r"max_tokens 2097152 .*--max-tokens"):
        run(tmp_path, "endless", environments=declared)
    assert run(tmp_path, "endless", environments=declared, num_tasks=2, max_tokens=8)[0].exit_code == 0


def engine_of(**options):
    return job_of(CollectOptions(source="x", output=Path("out.jsonl"), **options)).engine


def test_an_engine_comes_from_a_settings_file_that_needs_no_run_or_from_options(tmp_path, monkeypatch):
    config = tmp_path / "engine.toml"
    config.write_text('[generator.engine]\nkind = "scripted"\nmodel_path = "x"\nmax_num_seqs = 7\n')
    assert engine_of(config=config).max_num_seqs == 7
    monkeypatch.setenv("MY_KEY", "sk-very-secret-key")
    server = {"url": ("http://localhost:8000",), "model": "tiny"}
    found = engine_of(**server, api_key_variable="MY_KEY")
    assert (found.kind, found.http.model, found.http.max_connections) == ("openai_http", "tiny", 64)
    assert found.http.api_key is not None
    assert found.http.api_key.get_secret_value() == "sk-very-secret-key"
    with pytest.raises(ConfigurationError, match="NO_KEY: there is no such environment variable"):
        engine_of(**server, api_key_variable="NO_KEY")
    with pytest.raises(ConfigurationError, match="addresses"):
        engine_of(url=("ftp://localhost",), model="tiny")
    config.write_text('run = "demo"\n')
    with pytest.raises(ConfigurationError, match=r"has no \[generator\.engine\]"):
        engine_of(config=config)
    result = CliRunner().invoke(command, ["data.jsonl", "--output", "out.jsonl"])
    assert (result.exit_code, "name an engine" in result.output) == (2, True)


def test_answers_of_a_server_are_scored_and_the_tokens_that_it_reports_counted(tmp_path):
    declared = {NAME: Declaration(path=PATH)}
    (tmp_path / "data.jsonl").write_text('{"prompt": "2+2?", "order": "give 0.25"}\n')
    with fake_openai() as server:
        engine = engine_of(url=(server.url,), model="tiny", concurrency=4)
        source = tmp_path / "data.jsonl"
        run(tmp_path, source, engine=engine, environments=declared, environment=NAME, num_samples=3)
    rows = lines_of(tmp_path / "out.jsonl")
    assert [(row["response"], row["reward"], row["num_tokens"]) for row in rows] == [("yes", 0.25, 3)] * 3
    # LiteLLM answers 500 to a request without any key.
    assert {one.authorization for one in server.asked} == {"Bearer dummy"}
