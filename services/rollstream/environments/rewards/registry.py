"""Rewards by data source: which function scores the rows of a data set, in which range, and from where on it passes.

    data source                                                    range     passes from   rule
    openai/gsm8k                                                   0 .. 1    1             number after "#### "
    lighteval/MATH, DigitalLearningGmbH/MATH-lighteval,
    HuggingFaceH4/MATH-500                                         0 .. 1    1             text in the last box
    math_dapo, math, math_dapo_reasoning, aime*                    -1 .. 1   1             last line "Answer: …"
    numina_*                                                       0 .. 1    1             math-verify
    hiyouga/geometry3k                                             0 .. 1    0.9           last box, and 0.1 for format
    searchR1_nq, _triviaqa, _popqa, _hotpotqa, _2wikimultihopqa,
    _musique, _bamboogle                                           0 .. 1    1             exact match in the tags
    codecontests, apps, codeforces, taco                           0 .. 1    1             tests passed, in a sandbox
    ifeval                                                         0 .. 1    1             all instructions followed
    multiple_choice                                                0 .. 1    1             letter
    structured_output                                              0 .. 1    1             JSON that fits the schema

The names down to the code sources are verl's, so that its files score as they do there; where a rule differs from
verl's, its function says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollstream.environments.ifeval.ifeval import strict
from rollstream.environments.rewards.code import code_reward
from rollstream.environments.rewards.datasets import equivalent, geometry3k, gsm8k, math_boxed, math_dapo, search_r1
from rollstream.environments.rewards.json_schema import fits_schema
from rollstream.environments.rewards.letters import multiple_choice
from rollstream.environments.rewards.references import as_metadata, as_text
from rollstream.environments.rewards.sandbox import Sandbox
from rollstream.environments.rubric import RewardFn, RewardInput
from rollstream.schemas.errors import RewardError

_SHOWN_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSource:
    """How the rows of one data set, or of all whose names begin with `name` without its `*`, are scored."""

    name: str
    score: RewardFn | None = None
    """None: a program in the answer is run by a sandbox service."""
    range: tuple[float, float] = (0.0, 1.0)
    pass_threshold: float = 1.0

    def passed(self, reward: float) -> bool:
        """Whether an answer with this reward counts as right."""
        return reward >= self.pass_threshold

    def covers(self, data_source: str) -> bool:
        """Whether rows of this data source are scored so."""
        if self.name.endswith("*"):
            return data_source.startswith(self.name[:-1])
        return data_source == self.name


def _dapo(name: str) -> RewardSource:
    return RewardSource(name=name, score=math_dapo, range=(-1.0, 1.0))


_SEARCH_SETS: Final = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")

SOURCES: Final = (
    RewardSource(name="openai/gsm8k", score=gsm8k),
    RewardSource(name="lighteval/MATH", score=math_boxed),
    RewardSource(name="DigitalLearningGmbH/MATH-lighteval", score=math_boxed),
    RewardSource(name="HuggingFaceH4/MATH-500", score=math_boxed),
    _dapo("math_dapo"),
    _dapo("math"),
    _dapo("math_dapo_reasoning"),
    _dapo("aime*"),
    RewardSource(name="numina_*", score=equivalent),
    RewardSource(name="hiyouga/geometry3k", score=geometry3k, pass_threshold=0.9),
    *(RewardSource(name=f"searchR1_{name}", score=search_r1) for name in _SEARCH_SETS),
    *(RewardSource(name=name) for name in ("codecontests", "apps", "codeforces", "taco")),
    RewardSource(name="ifeval", score=strict),
    RewardSource(name="multiple_choice", score=multiple_choice),
    RewardSource(name="structured_output", score=fits_schema),
)


def source_of(name: str) -> RewardSource:
    """The source that scores rows of this data source. Raises `RewardError` if there is none."""
    for source in SOURCES:
        if source.covers(name):
            return source
    known = ", ".join(source.name for source in SOURCES)
    raise RewardError(f"data source {name[:_SHOWN_CHARACTERS]!r} has no reward; those that have one: {known}")


def score_by_source(sample: RewardInput, sandbox: Sandbox | None = None) -> float:
    """The reward of metadata `data_source`, within the source's range.

    Raises `RewardError` for an unknown source, for a row that lacks what its reward needs, and for a program without a
    sandbox. Some rewards can take for ever: score in a process that can be killed.
    """
    name = sample.metadata.get("data_source")
    if not name:
        raise RewardError("the row has no metadata 'data_source', which names its reward")
    source = source_of(name)
    return code_reward(sample, sandbox) if source.score is None else source.score(sample)


def default_compute_score(
    data_source: str,
    solution_str: str | None = None,
    ground_truth: Any = None,
    extra_info: Mapping[str, Any] | None = None,
    sandbox_fusion_url: str | None = None,
    *,
    solution: str | None = None,
) -> dict[str, float]:
    """One reward as verl's function of this name is called, for scripts: `{"score": reward, "acc": 1 if it passes}`.

    `solution` is another name of `solution_str`, the response. `sandbox_fusion_url` is the whole URL of a service that
    runs programs. The function runs in the calling process without a time limit; `rollstream analyze-rewards` has one.
    Raises `RewardError` where verl raises `NotImplementedError`, and where the response is null: a row without a
    response has no reward.
    """
    response = solution if solution is not None else solution_str
    if not isinstance(response, str):
        raise RewardError("a row without a response has no reward: leave it out, or generate it again")
    sample = RewardInput(
        completion=response,
        assistant_messages=(response,),
        reference_answer=as_text(ground_truth),
        metadata={**as_metadata(extra_info), "data_source": as_text(data_source) or ""},
    )
    reward = score_by_source(sample, Sandbox(url=sandbox_fusion_url) if sandbox_fusion_url else None)
    return {"score": reward, "acc": float(source_of(data_source).passed(reward))}
