r"""The reward of multiple-choice questions: the letter that an answer names, by fixed rules.

The first rule that finds a statement decides; of several statements that it finds, the last one counts:

1. `\boxed{B}`, also `\boxed{(B)}` and `\boxed{\text{B}}`
2. `<answer>B</answer>`
3. "answer is B", "Answer: B", "answer: (B)", "option B is correct"
4. a last line that is only `B`, `(B)`, `B.` or `B) …`

A statement that names two letters ("A or B", "A/C") is no answer, and neither is a letter that no choice has. Letters
are capital ones, so that the word "a" is none.
"""

import re
from typing import Final

from rollstream.environments.rewards.extraction import last_boxed, last_tagged
from rollstream.environments.rewards.references import nested, reference_of
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import RewardError

_ALL: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ONE: Final = re.compile(r"\**\s*\(?([A-Z])(?:\)|\b)[.:)]?\s*(.*)", re.DOTALL)
_SAID: Final = re.compile(
    # `*+` gives nothing back: many spaces between two `\\s*` would take time with the square of their number.
    r"(?i:\banswer(?:\s+is|\s*:)|\bcorrect\s+(?:option|choice)(?:\s+is|\s*:))\s*+:?\s*+(?i:option\s+|choice\s+)?"
    # Looked at but not taken: what follows may say "no, the answer is …".
    r"(?=(\**\s*\(?[A-Z](?![A-Za-z'])[^\n]{0,40}))"
    r"|(?i:\b(?:option|choice))\s+(\(?[A-Z]\)?)\s+is\s+(?:the\s+)?(?:correct|right)\b"
)
_ANOTHER: Final = re.compile(r"^[)*\s]*(?:or|and|/|,|&|\+)\s*(?:\(?option\s+|\(?choice\s+)?\(?[A-Z](?![A-Za-z'])")
_BARE_LINE: Final = re.compile(r"\**\(?([A-Z])(?:\)|\.|:|\b\**$|\*\*)(?:\s.*)?")


def multiple_choice(sample: RewardInput) -> float:
    """1 if the completion names the letter of the reference answer, else 0; no answer is 0 too.

    Metadata `choices`, a JSON list, bounds the letters; without it all of A to Z count. Raises `RewardError` if the
    reference answer is no letter of a choice.
    """
    letters = _letters(sample)
    reference = reference_of(sample)
    wanted = _only_letter(reference, letters)
    if wanted is None:
        raise RewardError(f"the reference answer {reference[:100]!r} is no letter of {letters[0]} to {letters[-1]}")
    return float(chosen_letter(sample.completion, letters) == wanted)


def answered(sample: RewardInput) -> float:
    """1 if the completion names one letter at all, else 0."""
    return float(chosen_letter(sample.completion, _letters(sample)) is not None)


def chosen_letter(completion: str, letters: str = _ALL) -> str | None:
    """The letter that a completion names; None if it names none, more than one, or one that is not in `letters`."""
    boxed = last_boxed(completion)
    if boxed is not None:
        return _only_letter(re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{(.*)\}", r"\1", boxed), letters)
    tagged = last_tagged(completion)
    if tagged is not None:
        return _only_letter(tagged, letters)
    if said := _SAID.findall(completion):
        return _only_letter("".join(said[-1]), letters)
    lines = completion.strip().splitlines()
    bare = _BARE_LINE.fullmatch(lines[-1].strip()) if lines else None
    return _only_letter(lines[-1], letters) if bare else None


def _only_letter(statement: str, letters: str) -> str | None:
    """The letter at the beginning of a statement, unless another one is offered beside it."""
    found = _ONE.fullmatch(statement.strip())
    if found is None or _ANOTHER.match(found[2]):
        return None
    return found[1] if found[1] in letters else None


def _letters(sample: RewardInput) -> str:
    text = sample.metadata.get("choices")
    if text is None:
        return _ALL
    choices = nested(text)
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(_ALL):
        raise RewardError(f"metadata 'choices' must be a JSON list of 2 to {len(_ALL)} choices, not {text[:100]!r}")
    return _ALL[: len(choices)]
