"""How much a generator takes at a time: samples for its engine, or tokens where a bound of them is set."""

from pathlib import Path
from typing import Any

import pytest

from rollstream.engines.settings import EngineSettings
from rollstream.generator.handler import InHand
from rollstream.generator.settings import GeneratorSettings
from rollstream.schemas.prompt import PromptSubmitted, Sampling
from tests.harness.builders import a_generated, a_prompt

SERVERS = {"urls": ("http://one:8000",), "model": "policy", "weight_updates": "vllm", "max_connections": 128}


def in_hand(max_tokens_in_flight: int | None = None, **engine: Any) -> InHand:
    settings = GeneratorSettings(
        run="demo",
        engine=EngineSettings(**{"model_path": Path("model"), **engine}),
        max_tokens_in_flight=max_tokens_in_flight,
    )
    return InHand(settings, max_model_len=8192)


def asked(group_size: int, max_tokens: int) -> PromptSubmitted:
    return a_prompt(group_size=group_size, sampling=Sampling(max_tokens=max_tokens))


@pytest.mark.parametrize(
    ("engine", "most"),
    [
        ({}, 384),
        ({"max_num_seqs": 64}, 96),
        ({"max_num_seqs": 1}, 2),
        ({"kind": "transformers", "max_num_seqs": 5}, 8),
        ({"kind": "scripted", "max_num_seqs": 2}, 3),
        ({"kind": "openai_http", "max_num_seqs": 7, "http": SERVERS}, 192),
    ],
)
def test_one_and_a_half_times_the_samples_that_the_engine_runs_are_in_hand(engine: dict[str, Any], most: int) -> None:
    taken = in_hand(**engine)
    assert taken.most == most
    assert [taken.weight(asked(8, max_tokens)) for max_tokens in (12, 8192)] == [8, 8], "however long they are"


@pytest.mark.parametrize(("bound", "weight"), [(None, 1), (65536, 12)])
def test_the_samples_of_a_prompt_free_together_what_it_weighs(bound: int | None, weight: int) -> None:
    prompt, taken = asked(8, 12), in_hand(bound)
    assert 8 * taken.freed(a_generated(prompt=prompt)) == taken.weight(prompt) == 8 * weight
    assert taken.weight(asked(10**12, 12)) == weight, "beyond its bound one sample says so"


def test_where_tokens_are_bounded_a_prompt_weighs_the_most_that_it_can_have() -> None:
    tokens = in_hand(65536)
    assert tokens.most == 65536
    assert tokens.weight(asked(4, 12)) == 48
    assert tokens.weight(asked(8, 8192)) == 65536
    # No more than the model takes.
    assert tokens.weight(asked(4, 2**62)) == 4 * 8192


def test_as_many_prompts_of_one_sample_are_taken_as_the_engine_has_room_for() -> None:
    many = {"kind": "openai_http", "http": {**SERVERS, "max_connections": 4000}}
    assert (in_hand(**many).most, in_hand(**many).most_prompts) == (6000, 6000)
    assert in_hand().most_prompts == in_hand(10**9).most_prompts == 4096
