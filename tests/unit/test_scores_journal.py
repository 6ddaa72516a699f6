"""The journal of `analyze-rewards`: what of it counts when it is opened again."""

from pathlib import Path

import pytest

from rollstream.offline.scores.journal import Score, ScoresJournal
from rollstream.schemas.errors import ConfigurationError

BEGUN_WITH = {"rollouts": "rollouts.jsonl@0123", "--name": "math", "--data_source": None}
SCORES = [Score(0, 1.0), Score(2, None, "timeout: 10 s"), Score(3, 0.0)]


def a_journal(path: Path) -> ScoresJournal:
    """One with three rows, in two batches; row 1 can't be read."""
    journal = ScoresJournal(path, BEGUN_WITH)
    journal.append(SCORES[:1])
    journal.append(SCORES[1:])
    return journal


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    assert list(a_journal(tmp_path / "j")) == SCORES
    again = ScoresJournal(tmp_path / "j", BEGUN_WITH)
    assert (list(again), again.num_rows, again.last_row) == (SCORES, 3, 3)
    again.append([Score(4, 0.1)])
    assert list(ScoresJournal(tmp_path / "j", BEGUN_WITH)) == [*SCORES, Score(4, 0.1)]


def test_before_its_first_batch_and_after_its_end_there_is_no_file(tmp_path: Path) -> None:
    journal = ScoresJournal(tmp_path / "j", BEGUN_WITH)
    assert (list(journal), journal.last_row) == ([], -1)
    assert not (tmp_path / "j").exists()
    a_journal(tmp_path / "j").remove()
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize(
    ("tail", "num_rows"),
    [
        (b'{"row": 4, "rewa', 3),
        (b'{"row": 4, "reward": 1.0}', 3),
        (b'{"row": 4, "reward": 1.0}\n', 4),
        (b'{"row": 3, "reward": 1.0}\n', 3),
        (b'{"row": 4}\n', 3),
        (b'{"row": 4, "reward": null}\n', 3),
        (b'{"row": "4", "reward": 1.0}\n', 3),
        (b'{"row": 4, "reward": "1"}\n', 3),
        (b'[4]\n{"row": 4, "reward": 1.0}\n', 3),
        (b"\0\0\0\0\n", 3),
        (b"\xff\n", 3),
    ],
)
def test_a_line_that_is_not_whole_ends_it_and_is_cut_off(tail: bytes, num_rows: int, tmp_path: Path) -> None:
    path = tmp_path / "j"
    a_journal(path)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    journal = ScoresJournal(path, BEGUN_WITH)
    assert journal.num_rows == num_rows
    assert [score.row for score in journal] == [0, 2, 3, 4][:num_rows]
    assert path.read_bytes() == (whole + tail if num_rows == 4 else whole)


@pytest.mark.parametrize("num_bytes", [0, 1, 20])
def test_one_whose_first_line_was_torn_begins_anew(num_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "j"
    a_journal(path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    journal = ScoresJournal(path, BEGUN_WITH)
    journal.append(SCORES)
    assert list(ScoresJournal(path, BEGUN_WITH)) == SCORES


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("--name", "gsm8k", "--name = math, now it is gsm8k"),
        ("--data_source", "mine", "--data_source = nothing, now it is mine"),
        ("rollouts", "rollouts.jsonl@4567", "rollouts = rollouts.jsonl@0123, now it is rollouts.jsonl@4567"),
    ],
)
def test_one_that_was_begun_with_something_else_is_refused_and_stays(
    name: str, value: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "j"
    a_journal(path)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=f"begun with {told}: go on with the same"):
        ScoresJournal(path, {**BEGUN_WITH, name: value})
    assert path.read_bytes() == before


def test_a_file_of_somebody_elses_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("my notes\n")
    with pytest.raises(ConfigurationError, match="is not the journal of analyze-rewards"):
        ScoresJournal(path, BEGUN_WITH)
    assert path.read_text() == "my notes\n"


def test_half_of_a_surrogate_pair_in_a_failure_is_written_as_a_mark(tmp_path: Path) -> None:
    journal = ScoresJournal(tmp_path / "j", BEGUN_WITH)
    journal.append([Score(0, None, "bad_reward: \ud800")])
    assert list(journal) == [Score(0, None, "bad_reward: ?")]
