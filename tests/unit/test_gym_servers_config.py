"""What `ng_run` reads: files and words are merged, references checked before a process starts, secrets hidden."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from rollstream.gym.addresses import may_be_asked
from rollstream.gym.options import HeadServer
from rollstream.gym.servers.config import merged, without_secrets
from rollstream.gym.servers.entry import agent_app
from rollstream.gym.servers.options import StatusOptions, run_options
from rollstream.gym.servers.plan import planned
from rollstream.gym.servers.settings import AgentSettings, ResourcesSettings
from rollstream.gym.servers.status import show_status
from rollstream.schemas.errors import ConfigurationError
from tests.harness.gym_stack import COUNTER, MULTI_STEP, OPENAI_MODEL, placed
from tests.harness.threads import application
from tests.harness.waits import in_a_loop

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


def test_a_secret_is_hidden_in_other_settings_and_in_addresses_too() -> None:
    config = {"a": {"api_key": "planted-key", "say": "use planted-key, not [planted-key]", "most": 3}}
    config["b"] = {"url": "http://me:planted-password@host:1/v1?planted=query", "say": "plain: a question?"}
    assert without_secrets(config) == {
        "a": {"api_key": "***", "say": "use ***, not [***]", "most": 3},
        "b": {"url": "http://***@host:1/v1?***", "say": "plain: a question?"},
    }


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


MODEL = {"entrypoint": "app.py", "base_url": "http://127.0.0.1:1/v1", "api_key": "planted-key", "model": "tiny"}
AGENT = {
    "entrypoint": "app.py",
    "resources_server": {"type": "resources_servers", "name": "box"},
    "model_server": {"type": "responses_api_models", "name": "policy"},
}


def trio(kind: str = "", **changed: Any) -> dict[str, Any]:
    """A server of each kind, one of them with other settings."""
    servers = {"responses_api_models": MODEL, "responses_api_agents": AGENT, "resources_servers": SERVER}
    servers[kind] = {**servers.get(kind, {}), **changed}
    return {
        "policy": {"responses_api_models": {"vllm_model": servers["responses_api_models"]}},
        "agent": {"responses_api_agents": {"simple_agent": servers["responses_api_agents"]}},
        "box": {"resources_servers": {"box": servers["resources_servers"]}},
    }


@pytest.mark.parametrize(
    ("kind", "key", "value", "why"),
    [
        ("responses_api_models", "max_trys", 2, "server 'policy': max_trys: no such key; did you mean max_tries"),
        ("responses_api_models", "return_token_id_information", "often", "return_token_id_information: "),
        ("responses_api_models", "uses_reasoning_parser", False, "is False, it must be true"),
        ("responses_api_models", "default_headers", {"X-Key": "planted-key"}, "is a table, it must be {}"),
        ("responses_api_agents", "skip_verification", True, "is True, it must be false: each rollout is verified"),
        ("responses_api_agents", "verify_second", 5, "did you mean verify_seconds"),
        ("responses_api_agents", "open_seconds", 3601, "open_seconds: .* less than or equal to 3600"),
        ("responses_api_agents", "verify_seconds", 86401, "verify_seconds: .* less than or equal to 86400"),
        ("resources_servers", "num_workers", 4, "is 4, it must be 1: each server is one process"),
        ("resources_servers", "max_session", 4, "did you mean max_sessions"),
    ],
)
def test_no_setting_of_a_server_is_passed_over_in_silence(kind: str, key: str, value: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        planned(trio(kind, **{key: value}))
    assert "planted-key" not in str(caught.value)


def test_g23_only_chats_can_be_asked_for_token_ids() -> None:
    assert len(planned(trio("responses_api_models", return_token_id_information=True))) == 3
    config = trio("responses_api_models", return_token_id_information=True)
    config["policy"]["responses_api_models"]["openai_model"] = config["policy"]["responses_api_models"].pop(
        "vllm_model"
    )
    with pytest.raises(ConfigurationError, match="openai_model can't ask for it: take vllm_model"):
        planned(config)


def test_what_only_describes_a_server_and_what_gym_sets_as_it_is_here_are_taken() -> None:
    said = {"domain": "math", "verified": False, "description": "d", "value": "v", "datasets": [], "license": "MIT"}
    assert len(planned(trio("resources_servers", **said, num_workers=1))) == 3
    usual = {"return_token_id_information": False, "uses_reasoning_parser": True, "default_headers": None}
    assert len(planned(trio("responses_api_models", **usual))) == 3


def test_a_program_of_your_own_reads_its_settings_itself() -> None:
    program = Path("resources_servers/box/app.py")
    program.parent.mkdir(parents=True)
    program.write_text("")
    assert planned(trio("resources_servers", entrypoint="app.py", my_own="x", num_workers=4))[2].program == program


@in_a_loop
async def test_the_longest_deadlines_that_a_server_takes_are_those_of_its_tools() -> None:
    made = AgentSettings.model_validate({**AGENT, "open_seconds": 3600, "tool_seconds": 3600, "verify_seconds": 86400})
    config = placed(
        box={"resources_servers": "http://127.0.0.1:1"}, policy={"responses_api_models": "http://127.0.0.1:1"}
    )
    async with agent_app(made, config):
        pass
    tools = ResourcesSettings.model_validate({**SERVER, "call_seconds": 3600, "verify_seconds": 86400}).tools()
    assert (tools.call_seconds, tools.verify_seconds) == (3600, 86400)


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000/", True),
        ("http://[::1]:8000", True),
        ("http://head.cluster:8000", True),
        ("http://169.254.169.254/latest", False),
        ("http://127.0.0.1@elsewhere:8000", False),
        ("http://elsewhere:8000#127.0.0.1", False),
        ("file://127.0.0.1/etc/passwd", False),
        ("http://[", False),
        ("None", False),
    ],
)
def test_only_this_machine_and_the_head_servers_are_asked(url: str, may: bool) -> None:
    assert may_be_asked(url, "head.cluster") is may


def test_a_head_server_that_names_another_machine_is_told_from_one_that_is_ill() -> None:
    async def named(request: web.Request) -> web.Response:
        return web.json_response([{"process_name": "policy", "url": "http://169.254.169.254:80"}])

    app = web.Application()
    app.add_routes([web.get("/server_instances", named)])
    said: list[str] = []
    with application(app) as port:
        assert not show_status(StatusOptions(head_server=HeadServer(port=port)), said.append)
    assert "policy" in said[0]
    assert said[0].endswith("not asked: it is on another machine")
    assert said[1] == "1 servers found (0 healthy, 1 unhealthy)"


def test_no_files_and_bad_options_are_refused() -> None:
    for words in ([], ["+config_paths=null"], ["+config_paths=[1]"], [files(*["x.yaml"] * 65)], [files("none.yaml")]):
        with pytest.raises(ConfigurationError):
            merged(words)
    with pytest.raises(ConfigurationError, match="start_seconds"):
        run_options({"start_seconds": 0})
    with pytest.raises(ConfigurationError, match="no key 'limit'"):
        merged([files(MULTI_STEP), "limit=5"])


BOX = """
box: {resources_servers: {box: {entrypoint: my.own.Box, max_sessions: 7, nested: {kept: 1, gone: 2}}}}
"""


@pytest.mark.parametrize(("kind", "names"), [("_inherit_from", ["crate"]), ("_copy", ["box", "crate"])])
def test_a_server_is_made_of_another_one(kind: str, names: list[str]) -> None:
    crate = f"crate: {{{kind}: box, resources_servers: {{box: {{max_sessions: 8, nested: {{kept: 3}}}}}}}}\n"
    found = merged([files(written(BOX + crate))])
    assert sorted(found) == names
    settings = {"entrypoint": "my.own.Box", "max_sessions": 8, "nested": {"kept": 3, "gone": 2}}
    assert found["crate"] == {"resources_servers": {"box": settings}}


def test_keys_are_taken_out_of_what_a_server_is_made_of() -> None:
    crate = "crate: {resources_servers: {box: {_copy: box.resources_servers.box, _delete_key: 'nested, entrypoint'}}}\n"
    assert merged([files(written(BOX + crate))])["crate"] == {"resources_servers": {"box": {"max_sessions": 7}}}


def test_a_whole_value_is_inherited_by_a_reference_to_what_is_made_itself() -> None:
    text = "pail: {_copy: box}\ncrate: ${inherit_from:pail}\nmost: ${copy:box.resources_servers.box.max_sessions}\n"
    found = merged([files(written(BOX + text))])
    assert (sorted(found), found["crate"], found["most"]) == (["box", "crate", "most"], found["box"], 7)


def test_words_reach_what_is_inherited() -> None:
    words = [files(written(BOX)), "+crate=${inherit_from:box}", "++box.resources_servers.box.max_sessions=9"]
    found = merged(words)
    assert list(found) == ["crate"]
    assert found["crate"]["resources_servers"]["box"]["max_sessions"] == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: {_copy: b}\n", "names 'b', which is not there"),
        ("a: {_copy: b}\nb: {_copy: a}\n", "made of itself: b of a of b"),
        ("a: {_copy: [b]}\nb: {}\n", "must be a text"),
        ("a: {_copy: b, _inherit_from: b}\nb: {}\n", "side by side"),
        ("a: {_copy: b, x: 1}\nb: 1\n", "has no keys"),
        ("a: {_delete_key: x}\n", "names x, which is not there"),
        ("a0: {x: 1}\n" + "".join(f"a{n}: {{_copy: a{n - 1}}}\n" for n in range(1, 500)), "10 deep"),
        ("".join(f"a{n}: [{', '.join(50 * [f'{{_copy: a{n + 1}}}'])}]\n" for n in range(5)) + "a5: {x: 1}\n",
         "more than 100000 values"),
    ],
)  # fmt: skip
def test_a_server_that_can_t_be_made_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        merged([files(written(text))])


def test_a_file_names_the_files_that_it_adds_to() -> None:
    written("config_paths: [lower.yaml]\nvalue: 2\nupper: 1\n", "upper.yaml")
    written("config_paths: [upper.yaml]\nvalue: 1\nlower: 1\n", "lower.yaml")
    assert merged([files("upper.yaml")]) == {"value": 2, "lower": 1, "upper": 1}


def test_the_environments_file_names_files_where_the_words_do_not() -> None:
    written("config_paths: [one.yaml]\n", "env.yaml")
    written("value: 1\n", "one.yaml")
    written("value: 2\n", "two.yaml")
    assert merged([]) == {"value": 1}
    assert merged([files("two.yaml")]) == {"value": 2}


def test_too_many_files_are_refused() -> None:
    for number in range(70):
        written(f"config_paths: [f{number + 1}.yaml]\n", f"f{number}.yaml")
    with pytest.raises(ConfigurationError, match="more than 64 files"):
        merged([files("f0.yaml")])
