"""What generators note beside a commit: which prompts are in work, and with which weight version they began."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.bus.commit_notes import (
    MAX_NOTE_BYTES,
    ids_in,
    ids_note,
    is_of_topic,
    marks_in,
    metadata_of,
    note_in,
    note_of,
    topic_id_in,
)

NUMBERS = st.integers(0, 10**18 - 1)


def test_metadata_names_the_topic_and_then_the_offsets_of_each_mark() -> None:
    assert note_of({1024: 17, 1030: 18, 1027: 17}) == "17:1024,1027;18:1030"
    for note in ("", "17:1024"):
        metadata = metadata_of("kYb3wUkdRqy5zEJ-rbkQ_w", note)
        assert (topic_id_in(metadata), note_in(metadata)) == ("kYb3wUkdRqy5zEJ-rbkQ_w", note)
    assert [(topic_id_in(metadata), note_in(metadata)) for metadata in (None, "")] == [("", ""), ("", "")]


def test_a_commit_counts_unless_it_names_another_topic() -> None:
    for metadata in ("new", "new 17:1024", "", None, "new\0", "\0"):
        assert is_of_topic(metadata, "new"), metadata
    for metadata in ("old", "old 17:1024", "old\0"):
        assert not is_of_topic(metadata, "new"), metadata


@given(st.text(alphabet="0123456789:;,", max_size=60))
def test_whatever_a_note_says_it_is_read_without_an_error(note: str) -> None:
    assert all(isinstance(number, int) for pair in marks_in(note).items() for number in pair)


def test_ids_of_several_topics_are_read_as_they_were_written_and_mark_nothing() -> None:
    ids = {"demo.prompts": "kYb3wUkdRqy5zEJ-rbkQ_w", "demo.scored": "0Yb3wUkdRqy5zEJ-rbkQ_w"}
    assert ids_in(ids_note(ids)) == ids
    assert marks_in(ids_note(ids)) == {}
    assert [ids_in(note) for note in ("", "17:1024", "=", "a=", "=b,,")] == [{}] * 5


@given(st.dictionaries(NUMBERS, NUMBERS, max_size=20))
def test_what_fits_is_read_as_it_was_written(marks: dict[int, int]) -> None:
    assert marks_in(note_of(marks)) == marks


@given(st.dictionaries(NUMBERS, st.integers(0, 3), min_size=50, max_size=200))
def test_a_note_is_bounded_and_keeps_the_lowest_marks(marks: dict[int, int]) -> None:
    note = note_of(marks)
    found = marks_in(note)
    assert len(note.encode()) <= MAX_NOTE_BYTES
    left_out = [mark for offset, mark in marks.items() if offset not in found]
    assert found.items() <= marks.items()
    assert max(found.values()) <= min(left_out, default=3)


STRANGE = ("", "of another program", "7", "7:", ":7", "7:1;", "7:1,,2", "-7:1", "\u0667:1", "7:1\n", "7:1," * 600)


@pytest.mark.parametrize("note", [*STRANGE, "7:" + "1" * 19])
def test_a_note_of_a_stranger_marks_nothing(note: str) -> None:
    assert marks_in(note) == {}
