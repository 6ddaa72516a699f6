"""What `ng_run` reads: files and words are merged, references checked before a process starts, secrets hidden."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollstream.gym.servers.config import merged, without_secrets
from rollstream.gym.servers.options import run_options
from rollstream.gym.servers.plan import planned
from rollstream.schemas.errors import ConfigurationError
from tests.harness.gym_stack import COUNTER, MULTI_STEP, OPENAI_MODEL

VLLM_MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
POLICY = ["+policy_base_url=http://127.0.0.1:8000/v1", "+policy_api_key=planted-key", "+policy_model_name=tiny"]


@pytest.fixture(autouse=True)
def _fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(*paths: str) -> str:
    return f"+config_paths=[{','.join(paths)}]"


def written(text: str, name: str = "own.yaml") -> str:
    Path(name).write_text(text)
    return name


def test_packaged_files_are_merged_with_the_environments_file_and_the_words() -> None:
    Path("env.yaml").write_text("policy_base_url: http://there/v1\npolicy_api_key: k\npolicy_model_name: big\n")
    found = merged([files(OPENAI_MODEL, MULTI_STEP), "++policy_model_name=tiny"])
    model = found["policy_model"]["responses_api_models"]["openai_model"]
    assert (model["openai_base_url"], model["openai_model"]) == ("http://there/v1", "tiny")
    assert [plan.name for plan in planned(found)] == [
        "policy_model",
        "example_multi_step_resources_server",
        "example_multi_step_simple_agent",
    ]


@pytest.mark.parametrize("model", [OPENAI_MODEL, VLLM_MODEL])
@pytest.mark.parametrize("example", [MULTI_STEP, COUNTER])
def test_each_packaged_pair_can_be_planned_with_words_alone(model: str, example: str) -> None:
    assert len(planned(merged([files(model, example), *POLICY]))) == 3


def test_a_file_of_the_working_directory_comes_before_the_packaged_one() -> None:
    own = Path(MULTI_STEP)
    own.parent.mkdir(parents=True)
    own.write_text("box: {resources_servers: {box: {entrypoint: my.own.Box}}}\n")
    assert list(merged([files(MULTI_STEP)])) == ["box"]


def test_g1_a_value_that_nobody_gives_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigurationError, match=r"policy_model\.\S+\.openai_base_url: .*'policy_base_url'"):
        merged([files(OPENAI_MODEL)])


def test_g1_a_server_that_is_not_there_is_refused_with_both_names() -> None:
    with pytest.raises(ConfigurationError, match=r"example_multi_step_simple_agent.*model_server is 'policy_model'"):
        planned(merged([files(MULTI_STEP)]))


def test_a_reference_to_a_server_of_another_kind_is_refused() -> None:
    agent = "example_multi_step_simple_agent.responses_api_agents.simple_agent.model_server.name"
    words = [files(OPENAI_MODEL, MULTI_STEP), *POLICY, f"++{agent}=example_multi_step_resources_server"]
    with pytest.raises(ConfigurationError, match="there are policy_model"):
        planned(merged(words))


def test_what_is_shown_hides_keys_and_keeps_the_rest() -> None:
    shown = without_secrets(merged([files(OPENAI_MODEL, MULTI_STEP), *POLICY]))
    text = yaml.safe_dump(shown)
    assert "planted-key" not in text
    assert shown["policy_model"]["responses_api_models"]["openai_model"]["openai_api_key"] == "***"
    assert shown["policy_model_name"] == "tiny"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [1]\nb: [*a, *a]\n", "aliases"),
        ("[1, 2]", "no mapping"),
        ("a: [", "cannot read"),
        ("a: ${b}\nb: ${a}\n", "cannot resolve|Recursive"),
        ("[" * 100_000, "nested more than 100 deep"),
        ("a: '" + "x" * 2**20 + "'", "more than 1048576 bytes"),
        ("\x00", "cannot read"),
    ],
)
def test_a_hostile_file_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        merged([files(written(text))])


SERVER: dict[str, Any] = {"entrypoint": "my.own.Box"}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"box": {"resources_servers": {"box": {"entrypoint": "../../x.py"}}}}, "no entrypoint"),
        ({"box": {"resources_servers": {"box": {"entrypoint": "box.py"}}}}, "is not there"),
        ({"box": {"responses_api_agents": {"box": {"entrypoint": "my.own.Agent"}}}}, "no entrypoint"),
        ({"../box": {"resources_servers": {"box": SERVER}}}, "its name must match"),
        ({"box": {"resources_servers": {"box": SERVER, "bag": SERVER}}}, "one of each"),
        ({"box": {"resources_servers": {"../..": SERVER}}}, "no implementation"),
        ({"box": {"resources_servers": {"box": {**SERVER, "host": "0.0.0.0"}}}}, "other machines"),
        ({"box": {"resources_servers": {"box": {**SERVER, "port": 70000}}}}, "port: "),
        ({"box": {"resources_servers": {"box": {**SERVER, "max_sessions": 10**9}}}}, "max_sessions: "),
        ({f"box{n}": {"resources_servers": {"box": SERVER}} for n in range(100)}, "at most 64"),
        ({"value": 1}, "has no server"),
    ],
)
def test_a_server_that_can_t_run_is_refused_by_its_name(entry: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        planned(entry)


def test_no_files_and_bad_options_are_refused() -> None:
    for words in ([], ["+config_paths=null"], ["+config_paths=[1]"], [files(*["x.yaml"] * 65)], [files("none.yaml")]):
        with pytest.raises(ConfigurationError):
            merged(words)
    with pytest.raises(ConfigurationError, match="start_seconds"):
        run_options({"start_seconds": 0})
    with pytest.raises(ConfigurationError, match="no key 'limit'"):
        merged([files(MULTI_STEP), "limit=5"])
