"""On the real stack, every expression of the dashboards and rules has an answer, or a reason why it has none."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollstream.schemas.topics import WEIGHTS
from tests.chaos.records import encoded_prompt
from tests.harness.image_environment import image_environment
from tests.harness.loops import STAGES
from tests.harness.processes import ROOT
from tests.harness.waits import wait_until
from tests.observability.commands import commands_in
from tests.observability.expressions import own_metrics, rules
from tests.observability.questions import ask_all, questions
from tests.observability.test_runbooks import PAGES
from tests.observability.without_data import AT_REST, EXPRESSIONS, MAY_HAVE_DATA, MOVES_IN, SELECTORS
from tests.ops.runbook_shell import CHANGES, EVALUATE, ROLLBACK, a_shell
from tests.ops.whole_stack import MAX_MODEL_LEN, WholeStack, a_whole_stack

# Beside two other test processes it takes twice as long as alone.
pytestmark = pytest.mark.timeout(600)
RUN = "whole-stack"
MADE = 'rollstream_trainer_ledger_entries_total{kind="step"}'
# Cut steps are seen between two scrapes: the next trainer must not have made them again by then.
STEPS, VERSIONS_BACK = 6, 5
ANSWERS_SECONDS = 60.0


@pytest.fixture(scope="module")
def stack(prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeStack]:
    """The stack after some steps, messages that can't be handled, and a rollback."""
    with a_whole_stack(tmp_path_factory.mktemp("whole-stack"), prometheus, RUN) as started:
        misuse(started)
        started.until(f"{MADE} >= {STEPS}")
        start_trainer = started.loop.stages["trainer"].start
        # Before the stop: the kernel knows to a second only when a process started.
        between = time.time()
        started.loop.stop("trainer")
        newest = started.loop.run.records(WEIGHTS)[-1].weight_version
        started.loop.run.command("weights", "rollback", str(newest - VERSIONS_BACK))
        started.loop.keep_alive("trainer", start_trainer)
        started.until(f"{MADE} >= {STEPS} and on (instance) process_start_time_seconds > {between}")
        yield started


def misuse(stack: WholeStack) -> None:
    """Bytes that are no record, and prompts that can't be asked or scored: some panels show only what goes wrong."""
    # Once Prometheus has seen a 0: an increase is seen from there on.
    stack.until('rollstream:dead_letters:zero_filled{stage="scorer"}')
    run = stack.loop.run
    run.publish("rollouts", [("outside", b"garbage")])
    unknown = encoded_prompt("aaa", environment="no_such_thing", purpose="train", group_size=2)
    too_long = encoded_prompt("a" * (MAX_MODEL_LEN + 1), environment="coin", purpose="train", group_size=2)
    run.publish("prompts", [("outside", unknown), ("outside", too_long)])


def test_every_expression_of_dashboards_and_rules_has_data_or_a_reason(stack: WholeStack) -> None:
    asked = questions()
    faults = ["nothing was asked yet"]

    def look() -> bool:
        faults[:] = ask_all(asked, stack.prometheus, stack.span, RUN).faults(SELECTORS, EXPRESSIONS, MAY_HAVE_DATA)
        return not faults

    wait_until(look, lambda: "\n".join(["answers:", *faults]), ANSWERS_SECONDS)


def test_prometheus_evaluates_every_rule_without_an_error(stack: WholeStack) -> None:
    groups = stack.prometheus.ask("rules")["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert [rule["lastError"] for rule in found if rule["health"] != "ok"] == []
    assert len(found) == len(rules("alerts", "recording", "thresholds"))


def test_no_log_of_a_stage_has_a_secret_and_no_stage_was_denied_its_work(stack: WholeStack) -> None:
    said = "".join(process.said() for process in stack.loop.run.running)
    assert "settings of trainer" in said
    assert [secret for secret in stack.secrets() if secret in said] == []
    assert "authorization" not in said.lower()
    assert {name: kept.restarts for name, kept in stack.loop.stages.items() if kept.restarts} == {}


def test_every_metric_of_the_stages_moves_or_has_a_reason(stack: WholeStack) -> None:
    of_commands = ("rollstream_collect_", "rollstream_evaluate_")
    own = {name for name in own_metrics() if not name.startswith(of_commands)} - AT_REST.keys()
    resting: set[str] = set()

    def look() -> bool:
        resting.clear()
        resting.update(name for name in own if not stack.prometheus.over_time(f"{name} != 0", stack.span))
        return not resting

    wait_until(look, lambda: f"to move: {sorted(resting)}", ANSWERS_SECONDS)


def test_what_several_stages_export_moves_in_each_that_does_such_work(stack: WholeStack) -> None:
    found = {
        metric: ", ".join(
            stage
            for stage in sorted(STAGES)
            if stack.prometheus.over_time(f'{metric}{{stage="{stage}"}} != 0', stack.span)
        )
        for metric in MOVES_IN
    }
    assert found == MOVES_IN


def test_every_command_of_the_runbooks_can_be_run_where_the_image_is(stack: WholeStack, tmp_path: Path) -> None:
    """Last, since it changes what counts; that is refused while a trainer runs."""
    image = image_environment(tmp_path)
    # The run's environment is of the user's own package, which lies where the commands are called.
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    shell = a_shell(stack, image, tmp_path, versions_back=0)
    commands = {command for page in PAGES.values() for command in commands_in(page)}
    evaluations = sorted(command for command in commands if command.startswith(EVALUATE))
    # A letter by its name before all letters.
    at_any_time = sorted(commands - {*CHANGES, *evaluations}, reverse=True)
    problems = {command: shell.problem_of(command) for command in at_any_time}
    found = [f"{command}: {problem}" for command, problem in problems.items() if problem]
    assert not found, "\n".join(found)
    assert "trainer" in (shell.problem_of(ROLLBACK) or "")

    stack.loop.stop("trainer")
    shell = a_shell(stack, image, tmp_path, versions_back=VERSIONS_BACK)
    for command in (*evaluations, *CHANGES):
        problem = shell.problem_of(command)
        assert problem is None, f"{command}: {problem}"
