"""`word-count-rollouts` through the real LiteLLM proxy: its alias is answered, another is refused in its words."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.collecting import lines_of
from tests.harness.fake_openai import fake_openai
from tests.harness.litellm_proxy import ALIAS, KEY, litellm_proxy
from tests.harness.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def counted(body: dict[str, Any]) -> str:
    """What the model behind the proxy answers: the right number."""
    text = body["messages"][-1]["content"].partition(":\n\n")[2]
    return f"<word_count>{len(text.split())}</word_count>"


def asked(url: str, output: Path, model: str) -> subprocess.CompletedProcess[str]:
    """The command, with three examples."""
    command = [sys.executable, "-m", "rollstream.cli.main", "word-count-rollouts", "--base-url", url]
    command += ["--model", model, "--num-examples", "3", "--output", str(output)]
    environment = {name: value for name, value in os.environ.items() if name != "API_BASE_URL"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "LITELLM_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_alias_is_answered_and_another_name_is_refused_without_a_reward(tmp_path: Path) -> None:
    with fake_openai(answer=counted) as server, litellm_proxy(server.url, "tiny", tmp_path) as proxy:
        right = asked(proxy, tmp_path / "right.jsonl", ALIAS)
        num_asked = len(server.asked)
        wrong = asked(proxy, tmp_path / "wrong.jsonl", "gpt-9")
    assert right.returncode == 0, right.stderr
    assert [row["reward"] for row in lines_of(tmp_path / "right.jsonl")] == [1.3] * 3
    # Looking whether the proxy is ready asks no model, and the other name never came to the server.
    assert num_asked == len(server.asked) == 3
    assert wrong.returncode == 70, wrong.stdout
    assert "refused: " in wrong.stderr
    assert "Invalid model name passed in model=gpt-9" in wrong.stderr
    failures = lines_of(tmp_path / "wrong.jsonl_failures.jsonl")
    assert len(failures) == 3
    assert not any("reward" in row for row in failures)
    assert not (tmp_path / "wrong.jsonl").exists()
    assert KEY not in right.stdout + right.stderr + wrong.stdout + wrong.stderr
