"""The 25 instructions of IFEval, each with its check, and how a response is judged by a list of them.

The ids, their arguments and their meaning are those of "Instruction-Following Evaluation for Large Language Models"
(arXiv 2311.07911); the checks are our own. Three differ where the original asks a trained model: sentences are divided
by rules (`form.count_sentences`), capital words by a pattern, and languages are told by script and common words
(`language.possible_languages`). Ids that other data sets added, such as `paragraphs:` or `count:`, are not covered: a
row that names one stays unscored.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from rollstream.environments.ifeval import form, words
from rollstream.environments.ifeval.arguments import Arguments, text
from rollstream.environments.ifeval.language import LANGUAGES, possible_languages
from rollstream.environments.rewards.references import nested
from rollstream.environments.rubric import RewardInput
from rollstream.schemas.errors import RewardError

Check = Callable[[str, Arguments], bool]

MAX_INSTRUCTIONS: Final = 100


def responds_in(response: str, arguments: Arguments) -> bool:
    """The response may be in this language. Raises `RewardError` for a language that can't be told."""
    language = text(arguments, "language")
    if language not in LANGUAGES:
        raise RewardError(
            f"language {language[:20]!r} can't be told from others; those that can: {', '.join(sorted(LANGUAGES))}"
        )
    return language in possible_languages(response)


CHECKS: Final[Mapping[str, Check]] = {
    "keywords:existence": words.has_keywords,
    "keywords:frequency": words.keyword_frequency,
    "keywords:forbidden_words": words.has_no_forbidden_word,
    "keywords:letter_frequency": words.letter_frequency,
    "language:response_language": responds_in,
    "length_constraints:number_sentences": form.number_of_sentences,
    "length_constraints:number_paragraphs": form.number_of_paragraphs,
    "length_constraints:number_words": words.number_of_words,
    "length_constraints:nth_paragraph_first_word": words.nth_paragraph_first_word,
    "detectable_content:number_placeholders": form.number_of_placeholders,
    "detectable_content:postscript": form.has_postscript,
    "detectable_format:number_bullet_lists": form.number_of_bullets,
    "detectable_format:constrained_response": form.is_constrained,
    "detectable_format:number_highlighted_sections": form.number_of_highlights,
    "detectable_format:multiple_sections": form.number_of_sections,
    "detectable_format:json_format": form.is_json,
    "detectable_format:title": form.has_title,
    "combination:two_responses": form.has_two_responses,
    "combination:repeat_prompt": form.repeats_prompt,
    "startend:end_checker": form.ends_with,
    "startend:quotation": form.is_quoted,
    "change_case:capital_word_frequency": words.capital_word_frequency,
    "change_case:english_capital": words.is_english_capital,
    "change_case:english_lowercase": words.is_english_lowercase,
    "punctuation:no_comma": form.has_no_comma,
}


def strictly_followed(sample: RewardInput) -> list[bool]:
    """For each instruction of the row whether the response follows it. An empty response follows none."""
    return [_follows(check, sample.completion, arguments) for check, arguments in _instructions(sample)]


def loosely_followed(sample: RewardInput) -> list[bool]:
    """The same for the best of eight versions of the response.

    These are: as it is, without its first line, without its last, without both, and each of these without asterisks.
    So an introduction ("Sure, here it is:") or bold type does not count against it.
    """
    lines = sample.completion.split("\n")
    cuts = [sample.completion, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    versions = [*cuts, *(cut.replace("*", "") for cut in cuts)]
    return [
        any(_follows(check, version, arguments) for version in versions) for check, arguments in _instructions(sample)
    ]


def _follows(check: Check, response: str, arguments: Arguments) -> bool:
    # The arguments of a row must be right even where there is nothing to check them with.
    return check(response, arguments) and bool(response.strip())


def _instructions(sample: RewardInput) -> list[tuple[Check, Arguments]]:
    """The row's checks with their arguments, from metadata or else from the reference answer (JSON text).

    Raises `RewardError` for an id that is not covered, and for lists that don't fit each other.
    """
    names, arguments = _lists(sample)
    unknown = sorted({str(name)[:60] for name in names if name not in CHECKS})
    if unknown:
        raise RewardError(f"instructions {', '.join(unknown[:5])} are not among the {len(CHECKS)} that are covered")
    return [
        (CHECKS[name], {key: value for key, value in (given or {}).items() if value is not None})
        for name, given in zip(names, arguments, strict=True)
    ]


def _lists(sample: RewardInput) -> tuple[list[Any], list[Any]]:
    row = sample.metadata
    if "instruction_id_list" not in row:
        given = nested(sample.reference_answer or "")
        row = given if isinstance(given, dict) else {}
    names, arguments = _as_list(row, "instruction_id_list"), _as_list(row, "kwargs")
    if not 1 <= len(names) <= MAX_INSTRUCTIONS or not all(isinstance(name, str) for name in names):
        raise RewardError(f"the row needs 1 to {MAX_INSTRUCTIONS} ids in 'instruction_id_list', JSON text")
    if len(names) != len(arguments) or not all(isinstance(given, dict | None) for given in arguments):
        raise RewardError(f"the row needs {len(names)} objects in 'kwargs', JSON text, one for each instruction")
    return names, arguments


def _as_list(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise RewardError(f"{name!r} of the row is no JSON text: {error}") from error
    return value if isinstance(value, list) else []
