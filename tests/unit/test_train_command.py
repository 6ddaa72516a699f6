"""`rollstream train` on a tiny model: SFT, RL from its newest checkpoint, and going on after a stop."""

import asyncio
import json
import os
import pickle
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollstream.cli.main import cli
from rollstream.local.tiny_model import write_tiny_model
from rollstream.process.files import held
from rollstream.schemas.errors import ConfigurationError, EngineError
from rollstream.training.pipeline.run import run_training
from rollstream.training.pipeline.settings import TrainSettings
from tests.harness import unruly_environment as unruly
from tests.harness.fake_openai import fake_openai
from tests.harness.forking import start_command, start_forked
from tests.harness.late import Late
from tests.harness.torch_run import two_processes
from tests.harness.waits import wait_until

torch = Late("torch")
transformers = Late("transformers")
README = Path(__file__).parents[2] / "trainer" / "README.md"
FILE = """
mode = "{mode}"
model = "tiny"
output = "run"
[sft]
environment = "sort_digits"
num_steps = {sft_steps}
batch_size = 8
max_samples = 64
checkpoint_every = 9
[sft.learning]
learning_rate = 1e-3
device = "cpu"
threads = 1
[rl]
environment = "sort_digits"
num_steps = {rl_steps}
batch_size = 2
n_samples_per_prompt = 4
num_prompts = 6
checkpoint_every = 2
{rl}
[rl.learning]
learning_rate = 1e-4
device = "cpu"
threads = 1
[rl.engine]
device = "cpu"
"""


ONE_TASK = """
mode = "sft+rl"
model = "tiny"
output = "run"
[environments.one_task]
path = "tests.harness.one_task_environment.OneTask"
[sft]
environment = "one_task"
max_samples = 8
num_steps = 100
batch_size = 8
log_every = 100
[sft.learning]
learning_rate = 1e-3
device = "cpu"
threads = 1
[rl]
environment = "one_task"
num_steps = 30
batch_size = 4
n_samples_per_prompt = 16
num_prompts = 8
seed = {seed}
[rl.learning]
learning_rate = 2e-3
device = "cpu"
threads = 1
[rl.engine]
device = "cpu"
{engine}
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tiny_model(Path("tiny"), seed=0, hidden=32, layers=2, heads=2, ffn=64)
    return tmp_path


def trained(mode="sft+rl", sft_steps=10, rl_steps=3, rl=""):
    """What the command says."""
    Path("train.toml").write_text(FILE.format(mode=mode, sft_steps=sft_steps, rl_steps=rl_steps, rl=rl))
    said = []
    asyncio.run(run_training(TrainSettings.read(Path("train.toml")), said.append))
    return "\n".join(said)


def steps_of(output):
    return [json.loads(line)["step"] for line in Path(output, "metrics.jsonl").read_text().splitlines()]


def names_in(checkpoints):
    return sorted(path.name for path in Path(checkpoints).iterdir())


def updates_of(checkpoint):
    return torch.load(Path(checkpoint) / "optimizer.bin", weights_only=True)["num_updates"]


def test_rl_begins_with_the_newest_checkpoint_of_sft_by_number_and_its_optimizer(directory):
    said = trained()
    assert "RL on 6 prompts, from run/checkpoints/step_10 to step 3" in said
    assert names_in("run/checkpoints") == ["step_10", "step_9"]
    assert names_in("run/rl/checkpoints") == ["step_2", "step_3"]
    assert steps_of("run") == list(range(1, 11))
    assert steps_of("run/rl") == [1, 2, 3]
    assert updates_of("run/checkpoints/step_10") == 10
    assert updates_of("run/rl/checkpoints/step_3") == 13
    model = transformers.AutoModelForCausalLM.from_pretrained("run/rl/checkpoints/step_3")
    assert transformers.AutoTokenizer.from_pretrained("run/rl/checkpoints/step_3").eos_token == "<eos>"
    saved = torch.load("run/rl/checkpoints/step_3/pytorch_model.bin", weights_only=True)
    assert torch.equal(model.state_dict()["model.norm.weight"], saved["model.norm.weight"])


def test_the_same_command_goes_on_where_the_output_stands(directory):
    trained(rl_steps=2)
    said = trained(rl_steps=4)
    assert "SFT has its 10 steps" in said
    assert "from run/rl/checkpoints/step_2 to step 4" in said
    assert steps_of("run") == list(range(1, 11))
    assert steps_of("run/rl") == [1, 2, 3, 4]
    assert updates_of("run/rl/checkpoints/step_4") == 14
    assert "RL has its 4 steps" in trained(rl_steps=4)


def test_sft_lowers_the_loss_and_rl_alone_begins_with_the_model(directory):
    trained("sft", sft_steps=40)
    losses = [json.loads(line)["loss"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.7 * losses[0]
    assert not Path("run/rl").exists()
    assert "RL on 6 prompts, from tiny" in trained("rl", rl_steps=1).replace(str(directory) + "/", "")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_reward_rises_with_any_seed(directory, seed):
    """From a quarter of the answers to more than a half: 0.26, 0.25, 0.21 to 0.60, 0.58, 0.48 with these seeds."""
    write_tiny_model(Path("tiny"), seed=seed, hidden=32, layers=2, heads=2, ffn=64)
    rewards = rewards_of(ONE_TASK.format(seed=seed, engine=""))
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_the_reward_follows_the_weights_that_the_engine_has(directory):
    """The scripted engine is right the more often the newer its weights are: one in ten at first, then ever more."""
    scripted = 'kind = "scripted"\nscripted = {correct_ratio = 0.1, correct_ratio_gain = 0.03}'
    rewards = rewards_of(ONE_TASK.format(seed=0, engine=scripted).replace("= 100", "= 1"))
    assert len(rewards) == 30
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.5


def rewards_of(text):
    Path("train.toml").write_text(text)
    asyncio.run(run_training(TrainSettings.read(Path("train.toml")), print))
    return [json.loads(line)["reward_mean"] for line in Path("run/rl/metrics.jsonl").read_text().splitlines()]


def test_answers_that_hang_a_verifier_get_the_reward_that_the_settings_give_them_and_are_counted(directory):
    orders = ("give 0.5", "sleep 60")
    rows = [{"prompt": f"{n}=", "metadata": {"order": order}} for n, order in enumerate(orders)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    late = 'dataset = "rows.jsonl"\nscoring_seconds = 0.3\nreward_at_timeout = -1.0'
    text = FILE.format(mode="rl", sft_steps=1, rl_steps=1, rl=late).replace("sort_digits", unruly.NAME)
    rewards = rewards_of(f'{text}[environments.{unruly.NAME}]\npath = "{unruly.PATH}"\n')
    assert rewards == [(0.5 - 1.0) / 2]
    [line] = map(json.loads, Path("run/rl/metrics.jsonl").read_text().splitlines())
    assert line["reward_component/reward_at_timeout"] == 0.5


def test_an_output_that_another_process_writes_is_refused(directory):
    with held(Path("run")), pytest.raises(ConfigurationError, match="another process writes run"):
        trained()


def test_prompts_may_come_from_a_file_and_the_environment_scores(directory, caplog):
    rows = [
        {"prompt": "210=", "reference_answer": "012"},
        {"prompt": None},
        {"prompt": "1" * 512, "reference_answer": "1"},
        {"prompt": "43=", "ground_truth": "34"},
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = trained("rl", rl_steps=1, rl='dataset = "rows.jsonl"')
    assert "RL on 2 prompts" in said
    assert "1 x it leaves no room in 512 tokens" in caplog.text
    assert steps_of("run/rl") == [1]


def test_a_filter_that_rejects_everything_ends_with_its_reasons(directory):
    with pytest.raises(ConfigurationError, match=r"check_min_reward.*max_resampling"):
        trained("rl", rl='filters = ["check_min_reward"]\nmax_resampling = 1')


def test_a_checkpoint_that_holds_code_is_refused_and_the_code_does_not_run(directory):
    class Code:
        def __reduce__(self):
            return os.mkdir, ("ran",)

    trained("sft")
    Path("run/checkpoints/step_10/optimizer.bin").write_bytes(pickle.dumps(Code(), protocol=2))
    with pytest.raises(ConfigurationError, match=r"step_10/optimizer\.bin"):
        trained()
    assert not Path("ran").exists()


def test_servers_get_the_weights_that_rl_begins_with_and_those_of_each_step(directory):
    """All of this server's answers are the same, and wrong: what counts here is what it is asked."""
    with fake_openai(kind="vllm") as server:
        http = f"""kind = "openai_http"
[rl.engine.http]
urls = ["{server.url}"]
model = "tiny"
tokenizer_path = "tiny"
weight_updates = "vllm"
"""
        Path("train.toml").write_text(FILE.format(mode="sft+rl", sft_steps=1, rl_steps=2, rl="") + http)
        asyncio.run(run_training(TrainSettings.read(Path("train.toml")), print))
    loaded = [str(Path(path).relative_to(directory)) for path in server.loaded]
    assert loaded == ["run/checkpoints/step_1", "run/rl/checkpoints/step_1", "run/rl/checkpoints/step_2"]
    assert server.weight_version == "2"
    assert {asked.body["cache_salt"] for asked in server.asked} == {"0", "1"}
    assert len(server.asked) == 16


def test_a_server_that_is_not_there_is_named_after_its_deadline(directory):
    http = """kind = "openai_http"
[rl.engine.http]
urls = ["http://127.0.0.1:1"]
model = "tiny"
tokenizer_path = "tiny"
weight_updates = "vllm"
ready_seconds = 0.2
"""
    Path("train.toml").write_text(FILE.format(mode="rl", sft_steps=1, rl_steps=2, rl="") + http)
    with pytest.raises(EngineError, match=r"0\.2 s.*127\.0\.0\.1:1.*http\.urls"):
        asyncio.run(run_training(TrainSettings.read(Path("train.toml")), print))


@pytest.mark.parametrize(("stop", "returned"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_signal_writes_a_checkpoint_and_the_command_goes_on_from_the_newest_after_kill_9_too(
    directory, stop, returned
):
    Path("train.toml").write_text(FILE.format(mode="rl", sft_steps=1, rl_steps=10_000, rl="sync_every = 10000"))
    process = start_command("train", "train.toml", log=directory / "log", directory=directory)
    wait_until(lambda: process.has_ended or "\nstep 3:" in process.said(), "step 3")
    process.signal(stop)
    assert process.wait() == returned
    assert ("the same command goes on" in process.said()) == (stop is not signal.SIGKILL)
    assert "Traceback" not in process.said()
    whole = [name for name in names_in("run/rl/checkpoints") if not name.startswith(".")]
    newest = max(int(name.removeprefix("step_")) for name in whole)
    assert newest >= (2 if stop is signal.SIGKILL else 3)
    assert steps_of("run/rl")[:3] == [1, 2, 3]
    assert updates_of(f"run/rl/checkpoints/step_{newest}") == newest
    assert f"step_{newest} to step {newest + 1}" in trained("rl", rl_steps=newest + 1)


def test_the_example_of_the_readme_trains(directory):
    """With fewer steps, and without the filter, which no group passes after two steps of SFT: no answer is right."""
    [example] = re.findall(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    shorter = re.sub(r"num_steps = \d+", "num_steps = 2", example).replace("models/tiny", "tiny")
    assert shorter.count("num_steps = 2") == 2
    Path("train.toml").write_text(shorter.replace("filters", "filters = [] #"))
    process = start_command("train", "train.toml", log=directory / "log", directory=directory)
    assert process.wait(200) == 0, process.said()
    assert process.said().splitlines()[-1].endswith("runs/sorting/rl/checkpoints/step_2")
    assert steps_of("runs/sorting") == steps_of("runs/sorting/rl") == [1, 2]


def test_sft_by_two_processes_of_torchrun_is_that_of_one(directory):
    """Each has half of every batch. A batch is all samples here, so that both runs have the same ones."""
    text = FILE.format(mode="sft", sft_steps=3, rl_steps=1, rl="").replace("max_samples = 64", "max_samples = 8")
    Path("two.toml").write_text(text.replace('"run"', '"two"'))
    torchrun = start_forked(partial(two_processes, directory, "train", "two.toml"), log=directory / "log")
    assert torchrun.wait(250) == 0, torchrun.said()
    assert [line for line in torchrun.said().splitlines() if line.startswith("trained")] == [
        "trained: two/checkpoints/step_3"
    ]
    Path("train.toml").write_text(text)
    asyncio.run(run_training(TrainSettings.read(Path("train.toml")), print))
    one, two = (
        torch.load(f"{output}/checkpoints/step_3/pytorch_model.bin", weights_only=True) for output in ("run", "two")
    )
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-5)
    assert steps_of("two") == [1, 2, 3]
    Path("train.toml").write_text(text.replace('"run"', '"two"').replace("num_steps = 3", "num_steps = 4"))
    with pytest.raises(ConfigurationError, match="two/checkpoints/step_3 was written by 2 processes"):
        asyncio.run(run_training(TrainSettings.read(Path("train.toml")), print))


def test_every_key_is_explained():
    shown = CliRunner().invoke(cli, ["train", "--keys"], catch_exceptions=False)
    assert shown.exit_code == 0
    for name in ("gpu_ranks", "n_samples_per_prompt", "[rl.engine]", "[sft.learning]", "sft+rl"):
        assert name in shown.output
