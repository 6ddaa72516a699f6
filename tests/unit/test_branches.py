"""Rollouts whose turns branch, as training samples: what merges, what is masked, what is refused."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.engines.protocol import GenerationRequest
from rollstream.engines.scripted import ScriptedEngine
from rollstream.engines.settings import EngineSettings
from rollstream.schemas.bounds import MAX_SAMPLE_TOKENS
from rollstream.schemas.errors import BadMessageError
from rollstream.schemas.prompt import Message, Sampling
from rollstream.schemas.rollout import FinishReason
from rollstream.training.learning.bounds import ANY_MODEL, ModelBounds, refuse_out_of_bounds
from rollstream.training.learning.samples import TrainedTokens, TrainingSample, training_samples
from tests.harness.builders import a_rollout, a_text_turn, a_turn


def a_turn_after(prefix_turn, prefix_tokens, given, sampled, **fields):
    ids = np.array(given, dtype=np.int32)
    return a_turn(sampled, prefix_turn=prefix_turn, prefix_tokens=prefix_tokens, prompt_token_ids=ids, **fields)


def taken(*turns, **fields) -> tuple[TrainingSample, ...]:
    return training_samples(
        a_rollout(turns=turns).rollout, 1.0, **{"advantage": 1.0, "lag": 0, "bounds": ANY_MODEL, **fields}
    )


def laid_out(sample):
    """Prompt, tokens, and which of these train."""
    return sample.prompt_token_ids.tolist(), sample.token_ids.tolist(), sample.loss_mask.astype(int).tolist()


FIRST = a_turn_after(None, 0, [1, 2], [3, 4])


def test_turns_that_extend_all_of_the_one_before_are_one_sample():
    (sample,) = taken(FIRST, a_turn_after(0, 4, [5], [6, 7]), a_turn_after(1, 7, [], [8]))
    assert laid_out(sample) == ([1, 2], [3, 4, 5, 6, 7, 8], [1, 1, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("branch", "prompt"),
    [
        (a_turn_after(0, 3, [5], [6]), [1, 2, 3, 5]),  # a part of the turn: its last token was taken away
        (a_turn_after(0, 1, [], [6]), [1]),
        (a_turn_after(0, 0, [5], [6]), [5]),
        (a_turn_after(None, 0, [5], [6]), [5]),
    ],
)
def test_a_branch_begins_a_sample_whose_prompt_is_what_it_extends_and_trains_no_token_twice(branch, prompt):
    samples = taken(FIRST, branch)
    assert [laid_out(sample) for sample in samples] == [([1, 2], [3, 4], [1, 1]), (prompt, [6], [1])]
    assert {sample.rollout_id for sample in samples} == {a_rollout().rollout.rollout_id}


def test_of_two_turns_that_extend_the_same_one_the_first_goes_on_with_its_sample():
    samples = taken(FIRST, a_turn_after(0, 4, [5], [6]), a_turn_after(0, 4, [7], [8]), a_turn_after(1, 6, [9], [10]))
    assert [laid_out(sample) for sample in samples] == [
        ([1, 2], [3, 4, 5, 6, 9, 10], [1, 1, 0, 1, 0, 1]),
        ([1, 2, 3, 4, 7], [8], [1]),
    ]


@dataclass
class Told:
    """Turns of random lengths and prefixes, and what the model saw: all tokens are different."""

    turns: list
    seen: list[list[int]]
    """Of each turn, when it ended."""
    contexts: dict[int, list[int]]
    """Sampled token → all tokens before it."""


@st.composite
def tellings(draw):
    told, fresh = Told([], [], {}), iter(range(1, 10_000))
    for number in range(draw(st.integers(1, 7))):
        before = draw(st.none() | st.integers(0, number - 1)) if number else None
        seen = [] if before is None else told.seen[before]
        kept = draw(st.just(len(seen)) | st.integers(0, len(seen)))
        given = [next(fresh) for _ in range(draw(st.integers(0 if kept else 1, 3)))]
        sampled = [next(fresh) for _ in range(draw(st.integers(1, 4)))]
        told.turns.append(a_turn_after(before, kept, given, sampled))
        told.seen.append([*seen[:kept], *given, *sampled])
        for place in range(len(sampled)):
            told.contexts[sampled[place]] = [*seen[:kept], *given, *sampled[:place]]
    return told


@given(tellings())
def test_every_sampled_token_trains_exactly_once_after_the_tokens_that_the_model_saw(told):
    samples = taken(*told.turns)
    logprobs = {
        token: logprob
        for turn in told.turns
        for token, logprob in zip(turn.token_ids.tolist(), turn.behavior_logprobs.tolist(), strict=True)
    }
    trained = {}
    for sample in samples:
        whole = [*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()]
        assert whole in told.seen
        for place in np.flatnonzero(sample.loss_mask):
            token = whole[len(sample.prompt_token_ids) + place]
            assert token not in trained
            trained[token] = whole[: len(sample.prompt_token_ids) + place]
            assert sample.behavior_logprobs[place] == logprobs[token]
        assert not sample.behavior_logprobs[~sample.loss_mask].any()
        assert (sample.weight_versions >= 0).tolist() == sample.loss_mask.tolist()
    assert trained == told.contexts
    assert len({tuple(one.prompt_token_ids) + tuple(one.token_ids) for one in samples}) == len(samples)


@pytest.mark.parametrize(
    ("turns", "named"),
    [
        ((a_turn_after(0, 1, [5], [6]),), "turn 0"),  # itself
        ((a_turn_after(0, 0, [5], [6]),), "turn 0"),
        ((FIRST, a_turn_after(2, 1, [5], [6]), FIRST), "turn 2"),  # a later one
        ((FIRST, a_turn_after(7, 1, [5], [6])), "turn 7"),
        ((FIRST, a_turn_after(0, 5, [5], [6])), "5 tokens"),
        ((FIRST, a_turn_after(None, 4, [5], [6])), "4 tokens"),
    ],
)
def test_a_prefix_that_does_not_exist_is_refused(turns, named):
    with pytest.raises(BadMessageError, match=named):
        taken(*turns)


def test_a_branch_with_an_empty_prompt_is_refused():
    with pytest.raises(BadMessageError, match="empty prompt"):
        taken(FIRST, a_turn_after(0, 0, [], [6]))


def test_a_small_record_cannot_name_a_long_prefix_without_end():
    long = a_turn_after(None, 0, range(2**17), [3, 4])
    branches = [a_turn_after(0, 2**17, [5], [6])] * 6
    assert len(taken(long, *branches)) == 7
    with pytest.raises(BadMessageError, match=str(MAX_SAMPLE_TOKENS)):
        taken(long, *branches, *branches)
    with pytest.raises(BadMessageError, match=r"at most 1000.*max_rollout_tokens"):
        taken(long, bounds=ModelBounds(max_rollout_tokens=1000))


def test_a_turn_must_fit_the_model_with_its_prefix_and_several_samples_need_not_fit_together():
    bounds = ModelBounds(max_tokens=7)
    refuse_out_of_bounds(a_rollout(turns=(FIRST, a_turn_after(0, 3, [5, 6], [7]), FIRST)), bounds)
    with pytest.raises(BadMessageError, match="8 tokens"):
        refuse_out_of_bounds(a_rollout(turns=(FIRST, a_turn_after(0, 4, [5, 6], [7, 8]))), bounds)


def num_trained(*turns, **fields):
    return [sample.num_trained_tokens for sample in taken(*turns, **fields)]


def test_the_last_turn_of_a_sample_says_whether_it_is_truncated():
    cut = a_turn_after(0, 3, [5], [6], finish_reason=FinishReason.LENGTH)
    assert num_trained(FIRST, cut) == [2, 0]
    assert num_trained(FIRST, cut, trained=TrainedTokens(truncated=True)) == [2, 1]
    assert num_trained(FIRST, cut, FIRST) == [2, 0, 2]
    cut_first = FIRST.model_copy(update={"finish_reason": FinishReason.LENGTH})
    assert num_trained(cut_first, a_turn_after(0, 4, [5], [6])) == [3]
    assert num_trained(cut_first, cut) == [0, 0]


@pytest.mark.parametrize("fields", [{"trains": False}, {"is_plain": False}])
def test_a_turn_that_may_not_train_is_given_to_the_next_one_and_trains_no_token(fields):
    (sample,) = taken(FIRST, a_turn_after(0, 4, [5], [6], **fields), a_turn_after(1, 6, [7], [8]))
    assert laid_out(sample) == ([1, 2], [3, 4, 5, 6, 7, 8], [1, 1, 0, 0, 0, 1])


def test_turns_of_another_model_are_in_no_sample():
    other = a_text_turn(model="summarizer")
    assert [laid_out(sample) for sample in taken(FIRST, other, a_turn_after(0, 4, [5], [6]))] == [
        ([1, 2], [3, 4, 5, 6], [1, 1, 0, 1])
    ]


def test_a_turn_that_trains_at_another_temperature_begins_a_sample_of_that_temperature():
    first, cold = FIRST.model_copy(update={"temperature": 1.0}), a_turn_after(0, 4, [5], [6], temperature=0.5)
    samples = taken(first, cold, a_turn_after(1, 6, [7], [8], temperature=0.5))
    assert [(laid_out(sample), sample.temperature) for sample in samples] == [
        (([1, 2], [3, 4], [1, 1]), 1.0),
        (([1, 2, 3, 4, 5], [6, 7, 8], [1, 0, 1]), 0.5),
    ]
    # The prompt's own temperature is 1, which a turn may say or leave out; a greedy turn that never trains splits none.
    greedy = a_turn_after(0, 4, [5], [6], temperature=0.0, is_plain=False)
    assert [sample.temperature for sample in taken(FIRST, greedy, a_turn_after(1, 6, [7], [8], temperature=1.0))] == [1]


def test_where_turns_have_advantages_of_their_own_the_others_do_not_train():
    turns = (FIRST, a_turn_after(0, 4, [5], [6], turn_type="summary"), a_turn_after(1, 6, [7], [8, 9]))
    (sample,) = taken(
        *turns, advantage=0.25, of_turns={0: -1.0, 2: 0.5}, trained=TrainedTokens(turn_weights={"answer": 2.0})
    )
    assert sample.loss_mask.tolist() == [True, True, False, False, False, True, True]
    assert sample.token_advantages.tolist() == [-2.0, -2.0, 1.0, 1.0]
    assert sample.has_gradient


def test_a_turns_weight_is_that_of_its_type_and_number_or_else_of_its_type():
    reasoning = {"turn_type": "reasoning"}
    turns = [
        a_turn_after(None, 0, [1], [2, 3], **reasoning),
        a_turn_after(0, 3, [4], [5], turn_type="summarization"),
        a_turn_after(1, 5, [6], [7], turn_number=3, **reasoning),
        a_turn_after(2, 7, [8], [9], turn_type="final"),
    ]
    weights = {"reasoning": 0.5, "summarization": 0.0, "reasoning/3": 2.0}
    (sample,) = taken(*turns, trained=TrainedTokens(turn_weights=weights))
    assert sample.turn_weights.tolist() == [0.5, 0.5, 0, 0, 0, 2, 0, 1]
    assert sample.loss_mask.tolist() == [True, True, False, False, False, True, False, True]
    assert replace(sample, advantage=-3.0).token_advantages.tolist() == [-1.5, -1.5, -6.0, -3.0]
    (sample,) = taken(*turns)
    assert sample.turn_weights is None
    assert sample.token_advantages.tolist() == [1.0] * 5


async def trajectory(engine):
    """Two questions, each answered after a user's or a tool's words, and a third of a context of its own.

    All answers, and the tokens that lay before each of them: those of the engine.
    """
    await engine.start(weight_version=3)
    turns, answers, seen = [], [], []

    async def ask(words, prefix_turn=None):
        given = engine.tokenize([Message(role="user", content=words)], ())
        before = np.zeros(0, dtype=np.int32) if prefix_turn is None else seen[prefix_turn]
        context = np.concatenate([before, given])
        request = GenerationRequest(
            request_id=words, prompt_token_ids=context, sampling=Sampling(), max_tokens=50, seed=1
        )
        answer = await engine.generate(request)
        answers.append((context.tolist(), answer.token_ids.tolist()))
        seen.append(np.concatenate([context, answer.token_ids]))
        fields = {"spans": [(3, 0, len(answer.token_ids))], "behavior_logprobs": answer.behavior_logprobs}
        turns.append(a_turn_after(prefix_turn, len(before), given, answer.token_ids.tolist(), **fields))

    await ask("52910=")
    await ask("tool: 7; 31=", prefix_turn=0)
    await ask("summarize 8642=")
    await ask("go on 97=", prefix_turn=1)
    return turns, answers


def test_a_trajectory_trains_the_engines_own_ids_and_none_of_what_users_and_tools_said(tmp_path):
    turns, answers = asyncio.run(trajectory(ScriptedEngine(EngineSettings(kind="scripted", model_path=tmp_path))))
    chain, alone = taken(*turns)
    whole = [*chain.prompt_token_ids.tolist(), *chain.token_ids.tolist()]
    for context, sampled in (answers[0], answers[1], answers[3]):
        begin, end = len(context), len(context) + len(sampled)
        assert whole[:end] == [*context, *sampled]
        given = len(chain.prompt_token_ids)
        assert chain.loss_mask[begin - given : end - given].all()
    assert chain.num_trained_tokens == sum(len(answers[number][1]) for number in (0, 1, 3))
    assert laid_out(alone) == (*answers[2], [1] * len(answers[2][1]))
