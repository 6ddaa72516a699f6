"""Where a producer goes on, and the prompt of a row: the same whoever submits it, with an id and a seed of its own."""

import pytest

from rollstream.producers.numbering import NumberedRow, RowPlace, place_after, prompt_of_row
from rollstream.producers.settings import ProducerSettings
from rollstream.producers.sources.protocol import PromptRow
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ids import group_id
from rollstream.schemas.prompt import Message, PromptSubmitted, Sampling
from tests.harness.builders import a_progress


def prompt_of(
    row: int,
    *,
    epoch: int = 0,
    name: str = "one",
    seed: int | None = 7,
    group_size: int = 4,
    max_tokens: int = 12,
    text: str = "",
) -> PromptSubmitted:
    settings = ProducerSettings(run="demo", name=name, environment="sort_digits", group_size=group_size)
    messages = (Message(role="user", content=f"{row}={text}"),)
    numbered = NumberedRow(
        place=RowPlace(position=row, sequence=row),
        epoch=epoch,
        row=PromptRow(prompt_id=f"digits/{row}", row=row, messages=messages),
    )
    return prompt_of_row(
        numbered, settings=settings, dataset="digits", sampling=Sampling(max_tokens=max_tokens, seed=seed)
    )


def test_a_prompt_submitted_again_asks_the_same_and_in_another_epoch_it_is_another_group() -> None:
    assert prompt_of(3).content_hash() == prompt_of(3, name="two").content_hash()
    assert prompt_of(3).group_id == group_id("demo", "digits/3", 0)
    assert prompt_of(3).group_id != prompt_of(3, epoch=1).group_id


def test_each_prompt_draws_noise_of_its_own() -> None:
    seeds = [prompt_of(row).sampling.seed for row in range(20)] + [prompt_of(3, epoch=1).sampling.seed]
    assert len(set(seeds)) == 21
    assert prompt_of(3, seed=None).sampling.seed is None


def test_a_row_whose_samples_would_all_fail_is_refused_with_its_bound() -> None:
    with pytest.raises(ConfigurationError, match=r"digits/3 can't be submitted: max_tokens .* is above 1048576"):
        prompt_of(3, max_tokens=2**40)
    with pytest.raises(
        ConfigurationError, match=r"group_size 1024 x 59\d+ bytes .* lower group_size to 45, or shorten"
    ):
        prompt_of(3, group_size=1024, text="x" * 5_900_000)


def test_a_producer_goes_on_where_its_record_says() -> None:
    assert place_after(None, "digits", 7) == RowPlace(position=0, sequence=0)
    left = a_progress(source="digits", mark=RowPlace(position=4).mark(7), next_sequence=9)
    assert place_after(left, "digits", 7) == RowPlace(position=4, sequence=9)
    assert place_after(left, "letters", 7) == RowPlace(sequence=9), "another data set starts at its first row"
    elsewhere = left.model_copy(update={"source": "letters", "mark": "0/7"})
    earlier = left.model_copy(update={"next_sequence": 5})
    assert place_after(elsewhere, "digits", 7, earlier=earlier) == RowPlace(position=4, sequence=9), "it came back"
    assert place_after(left.model_copy(update={"mark": "-1"}), "digits", 7) == RowPlace(sequence=9), "no position"


def test_another_seed_of_the_same_source_is_refused_since_its_rows_come_in_another_order() -> None:
    left = a_progress(source="digits", mark=RowPlace(position=4).mark(7), next_sequence=9)
    with pytest.raises(ConfigurationError, match=r"at row 4 of digits in the order of seed 7: .* set seed = 7"):
        place_after(left, "digits", 8)
