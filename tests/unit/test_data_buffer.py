"""Prompts over epochs: each once an epoch, the same order in every process, and a state that goes on in mid-epoch."""

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.rows.order import epoch_order
from rollstream.schemas.errors import BadMessageError, ConfigurationError
from rollstream.training.datasets import DataBuffer

PROMPTS = [f"prompt {number}" for number in range(7)]


def test_each_epoch_has_every_prompt_once_in_an_order_of_its_own() -> None:
    buffer = DataBuffer(PROMPTS, seed=3)
    epochs = [buffer.get_prompts(len(PROMPTS)) for _ in range(4)]
    assert all(sorted(epoch) == PROMPTS for epoch in epochs)
    assert all(one != next_one for one, next_one in pairwise(epochs))
    assert (buffer.epoch_id, buffer.sample_offset, buffer.position) == (4, 0, 28)


def test_the_order_is_that_of_the_producers() -> None:
    [(_, rows)] = epoch_order([len(PROMPTS)], seed=3, epoch=0)
    assert DataBuffer(PROMPTS, seed=3).get_prompts(7) == [PROMPTS[row] for row in rows]


def test_two_processes_agree_on_three_epochs_and_a_third_goes_on_in_the_middle() -> None:
    script = (
        "import json, sys; from rollstream.training.datasets import DataBuffer\n"
        "state, count, prompts = json.loads(sys.argv[1])\n"
        "buffer = DataBuffer(prompts, seed=11)\n"
        "if state: buffer.load_state(state)\n"
        "print(json.dumps([buffer.get_prompts(count), buffer.save_state()]))"
    )

    def in_a_process(state: Any, count: int, hash_seed: str) -> Any:
        asked = json.dumps([state, count, PROMPTS])
        return json.loads(
            subprocess.run(
                [sys.executable, "-c", script, asked],
                capture_output=True,
                check=True,
                timeout=60,
                env={"PYTHONHASHSEED": hash_seed},
            ).stdout
        )

    whole, _ = in_a_process(None, 21, "1")
    begun, state = in_a_process(None, 10, "2")
    assert begun == whole[:10]
    assert state == {"epoch_id": 1, "sample_offset": 3, "seed": 11}
    assert in_a_process(state, 11, "3")[0] == whole[10:]


@given(st.integers(1, 9), st.integers(0, 2**40), st.lists(st.integers(1, 20), max_size=6), st.integers(0, 5))
def test_a_state_goes_on_wherever_it_was_saved(num_prompts: int, seed: int, takes: list[int], cut: int) -> None:
    prompts = [str(number) for number in range(num_prompts)]
    whole = DataBuffer(prompts, seed).get_prompts(sum(takes) + 1)
    first = DataBuffer(prompts, seed)
    taken = [prompt for count in takes[:cut] for prompt in first.get_prompts(count)]
    second = DataBuffer(prompts, seed=seed + 1)
    second.load_state(json.loads(json.dumps(first.save_state())))
    assert second.position == len(taken)
    assert taken + second.get_prompts(len(whole) - len(taken)) == whole


def test_the_end_of_an_epoch_may_be_named_as_the_original_does() -> None:
    buffer = DataBuffer(PROMPTS)
    buffer.load_state({"epoch_id": 0, "sample_offset": 7, "seed": 42})
    assert buffer.save_state() == {"epoch_id": 1, "sample_offset": 0, "seed": 42}


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"epoch_id": 0, "sample_offset": 0},
        {"epoch_id": 0, "sample_offset": 0, "seed": 42, "prompts": []},
        {"epoch_id": -1, "sample_offset": 0, "seed": 42},
        {"epoch_id": 0, "sample_offset": 8, "seed": 42},
        {"epoch_id": 0, "sample_offset": -1, "seed": 42},
        {"epoch_id": 0.5, "sample_offset": 0, "seed": 42},
        {"epoch_id": 0, "sample_offset": "3", "seed": 42},
        {"epoch_id": 0, "sample_offset": 0, "seed": True},
    ],
)
def test_the_state_of_a_stranger_is_refused_and_changes_nothing(state: Any) -> None:
    buffer = DataBuffer(PROMPTS, seed=5)
    buffer.get_prompts(2)
    before = buffer.save_state()
    with pytest.raises(BadMessageError, match=r"state of a data buffer.*sample_offset"):
        buffer.load_state(state)
    assert buffer.save_state() == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"prompts": []}, "prompts.*at least one"),
        ({"prompts": "What is 2+2?"}, "prompts.*list"),
        ({"prompts": ["a", None]}, "prompt 1.*None"),
        ({"prompts": ["a"], "seed": 0.5}, r"seed.*0\.5"),
    ],
)
def test_prompts_that_cannot_be_handed_out_are_refused(arguments: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        DataBuffer(**arguments)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_number_of_prompts_below_one_is_refused(count: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{count}.*at least 1"):
        DataBuffer(PROMPTS).get_prompts(count)
