"""The environment `ifeval`: whether a response follows the instructions that its row lists (IFEval).

The reward is the paper's prompt-level strict accuracy: 1 if all instructions are followed, else 0. Reported beside it:
`loose` (the same with introductions and asterisks forgiven) and the shares of instructions that are followed, strictly
and loosely. With the option `reward = "share"` the strict share is the reward, which leaves more groups with spread.

Rows carry `instruction_id_list` and `kwargs` as JSON text in their metadata. Covered are the 25 ids of the paper:

    keywords:            existence, frequency, forbidden_words, letter_frequency
    language:            response_language (30 languages, `language.LANGUAGES`)
    length_constraints:  number_sentences, number_paragraphs, number_words, nth_paragraph_first_word
    detectable_content:  number_placeholders, postscript
    detectable_format:   number_bullet_lists, constrained_response, number_highlighted_sections, multiple_sections,
                         json_format, title
    combination:         two_responses, repeat_prompt
    startend:            end_checker, quotation
    change_case:         capital_word_frequency, english_capital, english_lowercase
    punctuation:         no_comma

A row that names another id, such as `count:` or `paragraphs:` of other data sets, or another language, stays unscored
as a whole, also if the rest of its instructions is covered: its failure is `bad_reward`, and the message names the ids.
"""

from collections.abc import Callable
from typing import Final

from rollstream.environments.ifeval.instructions import loosely_followed, strictly_followed
from rollstream.environments.protocol import no_tasks
from rollstream.environments.rubric import RewardFn, RewardInput, Rubric, WeightedReward
from rollstream.schemas.prompt import Sampling

_Judge = Callable[[RewardInput], list[bool]]
_REWARDS: Final = {"all": "strict", "share": "strict_share"}


def strict(sample: RewardInput) -> float:
    """1 if all instructions are followed, else 0."""
    return float(all(strictly_followed(sample)))


def _loose(sample: RewardInput) -> float:
    return float(all(loosely_followed(sample)))


def _share(judge: _Judge) -> RewardFn:
    def share(sample: RewardInput) -> float:
        followed = judge(sample)
        return sum(followed) / len(followed)

    return share


class IfEval:
    """Scores rows of a file; it has no tasks of its own. `reward` is "all" or "share"."""

    name = "ifeval"
    sampling = Sampling(temperature=1.0, max_tokens=1024)
    tasks = no_tasks

    def __init__(self, reward: str = "all") -> None:
        if reward not in _REWARDS:
            raise ValueError(f"reward must be one of {', '.join(_REWARDS)}")
        functions: dict[str, RewardFn] = {
            "strict": strict,
            "loose": _loose,
            "strict_share": _share(strictly_followed),
            "loose_share": _share(loosely_followed),
        }
        self.rubric = Rubric(
            *(WeightedReward(name, function, float(name == _REWARDS[reward])) for name, function in functions.items())
        )
