"""The texts of a rollout in cycles, one a turn: what the streams carry. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from rollstream.agents.problem_state import CycleOptions, InferenceProblemState
from rollstream.agents.reasoning_cache import problem_of
from rollstream.rc_actor.training_text import NOT_TRAINED, TrainingText
from rollstream.schemas.errors import UnusableRowError
from rollstream.schemas.prompt import PromptSubmitted
from rollstream.schemas.rollout import REASONING, SUMMARIZATION, RolloutGenerated, Turn
from rollstream.schemas.scored import Scoring

DATASET: Final = "dataset_name"
BARE_PROBLEM: Final = "bare_problem"
"""Entries of a prompt's metadata: the latter where the problem was posed in other words."""
RESUME_STATE: Final = "resume_state"
"""True in the metadata of a text that is no turn, but the state that another stage may go on from."""


def texts_of(
    rollout: RolloutGenerated,
    scoring: Scoring | None,
    options: CycleOptions,
    *,
    attempts: int = 1,
    with_resume_state: bool = False,
) -> list[TrainingText]:
    """A text for each turn. `attempts`: samples that share a `sample_id`; they differ in `rollout_index`.

    A text is the filled prompt and the answer; its ids have the chat template and earlier messages too.
    `with_resume_state`: after the last summary one more, which asks on and has no answer, with `resume_state` true.
    Raises `UnusableRowError` for a rollout of another agent.
    """
    problem, _ = problem_of(rollout.prompt)
    state = InferenceProblemState(problem, options)
    texts = [_text(rollout, number, scoring, state, attempts) for number in range(len(rollout.turns))]
    if with_resume_state and rollout.turns and rollout.turns[-1].turn_type == SUMMARIZATION:
        texts.append(_resume_state(rollout, state, attempts))
    return texts


def _text(
    rollout: RolloutGenerated, number: int, scoring: Scoring | None, state: InferenceProblemState, attempts: int
) -> TrainingText:
    """The text of a turn, after which the state is that of the next."""
    turn = rollout.turns[number]
    asked, answer = _said(turn, state)
    prompt_ids, sampled_ids = turn.prompt_token_ids.tolist(), turn.token_ids.tolist()
    has_ids = bool(prompt_ids) and (bool(sampled_ids) or not answer)
    reward = _reward(rollout, number, scoring)
    versions = [span.weight_version for span in turn.weight_spans]
    return TrainingText(
        text=asked + answer,
        n_predicted=len(answer),
        reward=reward,
        logprobs=turn.behavior_logprobs.tolist() if has_ids else [],
        input_ids=prompt_ids + sampled_ids if has_ids else [],
        labels=[NOT_TRAINED] * len(prompt_ids) + sampled_ids if has_ids else [],
        group_id=rollout.group_id,
        finished=not turn.is_truncated,
        prompt_tokens=len(prompt_ids) or turn.reported_prompt_tokens or 0,
        output_tokens=turn.num_completion_tokens,
        metadata={
            **_versions(versions),
            "rollout_index": rollout.sample_index % attempts,
            "cycle_step": turn.cycle_step,
            "turn_type": turn.turn_type,
            "turn_number": turn.turn_number,
            "sample_id": rollout.sample_index // attempts,
            **_of_problem(rollout.prompt, state.problem),
            "model": turn.model,
            "may_train": turn.may_train,
            "has_token_ids": has_ids,
            "has_reward": reward is not None and _is_scored(rollout, number, scoring),
        },
    )


def _said(turn: Turn, state: InferenceProblemState) -> tuple[str, str]:
    """What was asked, with an opened tag, and all that was answered; the state takes the turn."""
    if turn.prefix_turn is not None or turn.turn_type not in (REASONING, SUMMARIZATION):
        raise UnusableRowError("it is no rollout in cycles", f"a turn of type {turn.turn_type[:50]!r}")
    if turn.turn_type == REASONING:
        asked = state.get_filled_reasoning_prompt() + state.opening
        state.update_reasoning(turn)
        return asked, state.reasoning_string_complete_store[-1][len(state.opening) :]
    asked = state.get_filled_summarization_prompt()
    state.update_summarization(turn)
    return asked, state.summarization_string_complete_store[-1]


def _versions(versions: Sequence[int]) -> dict[str, Any]:
    """Null where the server does not say which weights answered."""
    return {"model_version": min(versions, default=None), "model_version_newest": max(versions, default=None)}


def _of_problem(prompt: PromptSubmitted, problem: str) -> dict[str, Any]:
    return {
        "problem_id": prompt.metadata.get("problem_id", prompt.prompt_id),
        "answer": prompt.reference_answer,
        DATASET: prompt.metadata.get(DATASET, prompt.source.dataset),
        "schema": prompt.metadata.get("schema", ""),
        # No wording of ours is added, and that of a task_template is left out.
        "original_problem": prompt.metadata.get(BARE_PROBLEM, problem),
    }


def _is_scored(rollout: RolloutGenerated, number: int, scoring: Scoring | None) -> bool:
    """Whether a turn was to be scored: by itself, or as the one that the whole rollout's reward is of."""
    if scoring is not None and scoring.turn_scores:
        return any(score.turn == number for score in scoring.turn_scores)
    return number == max((at for at, turn in enumerate(rollout.turns) if turn.turn_type == REASONING), default=-1)


def _reward(rollout: RolloutGenerated, number: int, scoring: Scoring | None) -> float | None:
    """Its score; 0 for a summary that nobody scores, as the original has it; None for reasoning without a score."""
    is_summary = rollout.turns[number].turn_type == SUMMARIZATION
    if not _is_scored(rollout, number, scoring):
        return 0.0 if is_summary else None
    if scoring is None:
        return None
    return next((score.reward for score in scoring.turn_scores if score.turn == number), scoring.reward)


def _resume_state(rollout: RolloutGenerated, state: InferenceProblemState, attempts: int) -> TrainingText:
    return TrainingText(
        text=state.get_filled_reasoning_prompt() + state.opening,
        n_predicted=0,
        group_id=rollout.group_id,
        metadata={
            **_versions(rollout.weight_versions),
            "rollout_index": rollout.sample_index % attempts,
            "cycle_step": state.overall_cycle_step,
            "turn_type": REASONING,
            "turn_number": state.reasoning_turn_number + 1,
            "sample_id": rollout.sample_index // attempts,
            **_of_problem(rollout.prompt, state.problem),
            "has_token_ids": False,
            "has_reward": False,
            RESUME_STATE: True,
        },
    )
