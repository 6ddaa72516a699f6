"""The reward functions of `analyze-rewards`: which environment scores, and which rewards pass."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rollstream.environments.rewards.registry import source_of
from rollstream.process.settings.declared import Declaration
from rollstream.process.terminal import shown
from rollstream.schemas.errors import ConfigurationError, RewardError

CUSTOM_ENVIRONMENT: Final = "custom_reward"
_RESERVED: Final = ("normalized", "failure", "model", "before")


@dataclass(frozen=True, slots=True)
class Judging:
    """What rewards of one function mean: their range, and the smallest that passes."""

    lowest: float
    highest: float
    pass_threshold: float

    def normalized(self, reward: float) -> float:
        """The reward with its range moved to 0 to 1; one outside of the range stays outside."""
        return (reward - self.lowest) / (self.highest - self.lowest)

    def passes(self, reward: float) -> bool:
        """Whether the reward passes."""
        return reward >= self.pass_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """One choice of `--reward_fn`. `name`: of its column; `environment`: whose rubric scores."""

    choice: str
    """All that tells this function from others, in words."""
    name: str
    environment: str
    judging: Callable[[str], Judging | None]
    """By the row's data source; None: nothing is known about the rewards. Raises `RewardError` with a reason."""
    declarations: Mapping[str, Declaration] = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The column of its rewards."""
        return f"reward_{self.name}"


def reward_function(
    choice: str, *, path: str | None = None, name: str | None = None, sandbox_url: str | None = None
) -> RewardFunction:
    """The function behind `--reward_fn CHOICE [PATH]`; raises `ConfigurationError` that says what to add or leave out.

    `name` is for its column. `sandbox_url` is for programs, which `auto` alone scores.
    """
    named = _column_name(name or choice)
    if (path is not None) != (choice == "custom"):
        raise ConfigurationError(
            f"--reward_fn {choice} takes no path of a function, got {path!r}: leave it out, or take --reward_fn custom"
            if path
            else "--reward_fn custom needs the path of your function: --reward_fn custom package.module.function"
        )
    match choice:
        case "auto":
            options = {"sandbox_url": sandbox_url} if sandbox_url else {}
            declared = {"by_source": Declaration.model_validate({"options": options})}
            return RewardFunction(
                # Not its URL: the service may move, or the URL may hold a key.
                choice="auto with a sandbox" if sandbox_url else "auto",
                name=named,
                environment="by_source",
                judging=_by_source,
                declarations=declared,
            )
        case "custom":
            return RewardFunction(
                choice=f"custom {path}",
                name=named,
                environment=CUSTOM_ENVIRONMENT,
                judging=lambda source: None,
                declarations={CUSTOM_ENVIRONMENT: _custom(str(path))},
            )
    judging = _ONE[choice]
    return RewardFunction(choice=choice, name=named, environment=choice, judging=lambda source: judging)


def judging_of(source: str) -> Judging | None:
    """How the rewards of a data source are judged; None if it is not known."""
    try:
        found = source_of(source)
    except RewardError:
        return None
    lowest, highest = found.range
    return Judging(lowest, highest, found.pass_threshold)


def _by_source(source: str) -> Judging | None:
    if not source:
        raise RewardError(
            "no_source: the row has no column original_data_source, which says how to score it; name one with "
            "--data_source, or a function with --reward_fn"
        )
    try:
        source_of(source)
    except RewardError as error:
        # Not the error's own text, which lists all sources: it would stand in each row.
        raise RewardError(
            f"unknown_source: no reward is known for the data source {shown(source)}; --reward_fn names one for all"
        ) from error
    return judging_of(source)


def _custom(path: str) -> Declaration:
    if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
        raise ConfigurationError(
            f"{path!r} is no path of a function: write package.module.function, which Python can import from here"
        )
    own = "rollstream.offline.scores.custom.CustomReward"
    return Declaration.model_validate({"path": own, "options": {"path": path}})


def _column_name(name: str) -> str:
    if not name.isidentifier() or name in _RESERVED:
        raise ConfigurationError(f"--name {name!r}: take letters, digits and _, and none of {', '.join(_RESERVED)}")
    return name


_ONE: Final[Mapping[str, Judging]] = {"math": Judging(0.0, 1.0, 1.0), "ifeval": Judging(0.0, 1.0, 1.0)}
