"""Answers to clients with their feedback, as groups of one beside those of producers, in a trainer on a broker."""

import signal

from rollstream.process.crash_points import CRASH_AT
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.scored import RolloutScored
from tests.harness.builders import a_prompt, a_served
from tests.harness.running import Run
from tests.harness.trainer_runs import Start, a_scored, configure, put_scored, scored_groups, survivors

ONES_PER_GROUP = 4


def an_answer(run: Run, number: int, *, environment: str = "chat", may_train: bool = True) -> RolloutScored:
    """No two have the same reward, so whichever meet in a step teach something."""
    asked: PromptSubmitted = a_prompt(
        number, run=run.name, prompt_id=f"serve/{number}", group_size=1, environment=environment
    )
    scored = a_scored(asked, 0, version=0, reward=number / 10)
    served = a_served(f"chatcmpl-{number}", may_train=may_train)
    return scored.model_copy(update={"rollout": scored.rollout.model_copy(update={"served": served})})


def test_answers_train_once_beside_groups_across_a_kill_and_one_alone_waits(run: Run, start: Start) -> None:
    run.shared |= {"ones_per_group": ONES_PER_GROUP}
    configure(run, checkpoint_every=2, num_steps=3)
    # Four groups and twice so many answers as make one: three steps of two.
    answers = [an_answer(run, number) for number in range(2 * ONES_PER_GROUP)]
    alone = an_answer(run, 100, environment="code")
    refused = an_answer(run, 101, may_train=False)
    put_scored(run, [alone, refused, *answers])
    prompts = scored_groups(run, 4)

    assert start(**{CRASH_AT: "transaction_sent:3"}).wait() == -signal.SIGKILL
    assert start().wait() == 0
    found = survivors(run)
    assert found.step == 3
    trained = [rollout.rollout_id for entry in found.chain for rollout in entry.trained]
    assert len(set(trained)) == len(trained) == len(answers) + 4 * len(prompts)
    assert {answer.rollout.rollout_id for answer in answers} < set(trained)
    assert found.closed[refused.rollout.group_id].reason == "no_consent"
    assert alone.rollout.group_id not in found.closed
    steps = [entry for entry in found.chain if entry.kind is EntryKind.STEP]
    num_served = sum(round(entry.metrics["served_ratio"] * len(entry.trained)) for entry in steps)
    assert num_served == len(answers)
