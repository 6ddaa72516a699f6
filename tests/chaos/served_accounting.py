"""What became of every answer that reached its caller whole, and of what the callers said of it.

As `accounting.py` it imports nothing of the project, so that a mistake of the stages is not repeated here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from tests.chaos.accounting import Account, check_turns
from tests.chaos.records import Fields

ChoiceKey = tuple[str, int]
"""Response id, and the number of the choice."""


@dataclass(frozen=True, kw_only=True)
class ServedAccount:
    """What callers saw, and what the topics say."""

    answered: Mapping[ChoiceKey, str]
    """The text of each choice of a whole answer."""
    rated: Mapping[ChoiceKey, AbstractSet[float]]
    """What ingest confirmed of a choice that may train."""
    recorded: Iterable[Fields]
    """Records of `serve-rollouts`."""
    rewarded: Iterable[Fields]
    """Records of `serve-scored`."""
    account: Account

    @cached_property
    def unrecorded(self) -> set[ChoiceKey]:
        """Choices that reached their caller, and are not on `serve-rollouts`."""
        return self.answered.keys() - {_choice_of(rollout) for rollout in self.recorded}

    @cached_property
    def unscored(self) -> set[str]:
        """Recorded rollouts that no scorer has given on."""
        given = {record["rollout"]["rollout_id"] for record in self.rewarded}
        return {rollout["rollout_id"] for rollout in self.recorded} - given

    @cached_property
    def unpublished(self) -> set[ChoiceKey]:
        """Rated choices that may train, and are not on `scored`."""
        return self.rated.keys() - {_choice_of(record["rollout"]) for record in self._published}

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way any more."""
        return not (self.unrecorded or self.unscored or self.unpublished)

    @cached_property
    def trained(self) -> list[ChoiceKey]:
        """Choices that surviving steps trained on, as often as they did."""
        steps = (entry for entry in self.account.chain if entry["kind"] == "step")
        places = ((named["partition"], named["offset"]) for entry in steps for named in entry["trained"])
        records = (self.account.scored[place]["rollout"] for place in places)
        return [_choice_of(rollout) for rollout in records if rollout["served"] is not None]

    def check(self) -> None:
        """Check what must hold in the end; raises `AssertionError` with the first thing that does not."""
        _none(self.unrecorded, "whole answers are not recorded")
        _none(self.unscored, "recorded answers are not scored")
        _none(self.unpublished, "rated answers are not on scored")
        self._check_records()
        self._check_rewards()
        _none({one for one in self.trained if self.trained.count(one) > 1}, "answers were trained twice")

    def _check_records(self) -> None:
        """Each choice is one rollout, with the text that its caller saw."""
        ids: defaultdict[ChoiceKey, set[tuple[str, str]]] = defaultdict(set)
        for rollout in self.recorded:
            check_turns(rollout)
            choice = _choice_of(rollout)
            ids[choice].add((rollout["rollout_id"], rollout["attempt_id"]))
            text = rollout["turns"][-1]["text"]
            if self.answered.get(choice, text) != text:
                raise AssertionError(f"{choice} was answered with {self.answered[choice]!r}, and {text!r} is recorded")
        _none({choice for choice, found in ids.items() if len(found) > 1}, "answers were recorded as several rollouts")

    def _check_rewards(self) -> None:
        """What `scored` says is what callers said."""
        for record in self._published:
            choice, reward = _choice_of(record["rollout"]), record["scoring"]["reward"]
            if reward not in self.rated.get(choice, ()):
                raise AssertionError(f"{choice} has reward {reward}, its ratings are {self.rated.get(choice)}")

    @cached_property
    def _published(self) -> list[Fields]:
        return [record for record in self.account.scored.values() if record["rollout"]["served"] is not None]


def _choice_of(rollout: Fields) -> ChoiceKey:
    served = rollout["served"] or {"response_id": f"none, but {rollout['rollout_id']}", "choice": 0}
    return served["response_id"], served["choice"]


def _none(wrong: AbstractSet[object], what: str) -> None:
    if wrong:
        raise AssertionError(f"{len(wrong)} {what}: {sorted(map(str, wrong))[:5]}")
