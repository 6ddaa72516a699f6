"""Words of Gym's command lines: signs, values, and what is refused by name."""

import pytest

from rollstream.gym.options import GymCollectOptions, from_words
from rollstream.process.settings.overrides import overridden
from rollstream.schemas.errors import ConfigurationError

FILES = ("+input_jsonl_fpath=in.jsonl", "+output_jsonl_fpath=data/rollouts_v2.0_20261126.jsonl")


def test_values_are_yaml_and_null_is_none() -> None:
    words = ["+limit=null", "+a.b=[1, x]", "+a.c=1e-3", "+text='1'", "+none=", "+on=true", "+m={x: {y: 2}}"]
    assert overridden(words, ()) == {
        "limit": None,
        "a": {"b": [1, "x"], "c": 0.001},
        "text": "1",
        "none": None,
        "on": True,
        "m": {"x": {"y": 2}},
    }


def test_a_plus_adds_two_set_again_and_a_tilde_takes_away() -> None:
    assert overridden(["+a.b=1", "++a.b=2", "+a.c=3", "~a.c"], ()) == {"a": {"b": 2}}
    assert overridden(["limit=3"], ["limit"]) == {"limit": 3}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["limit=3"], "no key 'limit': write +limit=…"),
        (["+a=1", "+a=2"], "'a' was set before '+a=2': write ++a=…"),
        (["~a"], "~a: there is no 'a' to take away"),
        (["+limit"], "'+limit' has no value"),
        (["--limit=3"], "cannot read '--limit=3': expected +key=value"),
        (["+a=[1"], "cannot read '+a=[1'"),
        (["+a=${oc.env:NO_SUCH_VARIABLE_HERE}"], "cannot resolve a"),
    ],
)
def test_a_word_that_can_not_be_read_is_named(words: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        overridden(words, ())
    assert why in str(refused.value)


def test_the_documents_words_are_options() -> None:
    words = ["+limit=5", "+num_repeats=2", "+num_samples_in_parallel=3", "+agent_name=a"]
    options = from_words(GymCollectOptions, [*FILES, *words, "+responses_create_params.max_output_tokens=8192"])
    assert (options.limit, options.num_repeats, options.num_samples_in_parallel) == (5, 2, 3)
    assert options.responses_create_params == {"max_output_tokens": 8192}
    assert str(options.output_jsonl_fpath) == "data/rollouts_v2.0_20261126.jsonl"
    assert from_words(GymCollectOptions, [*FILES, "limit=null", "+num_repeats=null"]).limit is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["+limit=0"], "limit: Input should be greater than or equal to 1"),
        (["+limits=5"], "limits: unknown; known are input_jsonl_fpath, output_jsonl_fpath, agent_name, limit"),
        (["+num_repeats=100000"], "num_repeats"),
        (["~input_jsonl_fpath"], "input_jsonl_fpath: it is required"),
    ],
)
def test_an_option_out_of_its_bounds_is_named(words: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        from_words(GymCollectOptions, [*FILES, *words])
    assert why in str(refused.value)
