"""Rollouts of the agent `reasoning_cache` as a test wants them."""

from typing import Any

from rollstream.agents.problem_state import CycleOptions
from rollstream.schemas.prompt import AgentChoice, Message, Purpose
from rollstream.schemas.rollout import Turn
from rollstream.schemas.scored import RolloutScored, Scoring, TurnScore
from tests.harness.builders import a_failure, a_prompt, a_rollout, a_scoring, a_turn

TEMPLATES = {
    "reasoning_prompt_template": "P:{problem} S:{curr_summary}",
    "summarization_prompt_template": "P:{problem} S:{existing_summary} R:{reasoning}",
}
OPTIONS = CycleOptions(**TEMPLATES)  # type: ignore[arg-type]


def cycle_turns(num_cycles: int, *, ends_with_summary: bool = True) -> tuple[Turn, ...]:
    """Reasoning `r1`, summary `s1`, and so on."""
    turns: list[Turn] = []
    for number in range(1, num_cycles + 1):
        for turn_type, letter in (("reasoning", "r"), ("summarization", "s")):
            step = len(turns)
            turns.append(
                a_turn(text=f"{letter}{number}", turn_type=turn_type, turn_number=number, cycle_step=step)
            )  # fmt: skip
    return tuple(turns if ends_with_summary else turns[:-1])


def a_cycled(
    row: int, run: str, *, num_cycles: int = 3, options: dict[str, str] | None = None, **fields: Any
) -> RolloutScored:
    """A scored rollout of so many cycles of problem `row`, asked by a client."""
    prompt = a_prompt(
        row,
        run=run,
        messages=(Message(role="system", content="Be brief."), Message(role="user", content=f"{row}=")),
        agent=AgentChoice(name="reasoning_cache", options={**TEMPLATES, **(options or {})}),
        purpose=Purpose.SERVE,
    )
    fields.setdefault("turns", cycle_turns(num_cycles))
    return a_rollout(prompt=prompt, **fields)


def scored_by_turns(rewards: dict[int, float | None], reward: float | None = 1.0) -> Scoring:
    """Scores of these turns; None: scoring that turn failed."""
    scores = tuple(
        TurnScore(turn=turn, reward=score, failure=a_failure("verifier crashed") if score is None else None)
        for turn, score in rewards.items()
    )
    return a_scoring(reward, turn_scores=scores)
