"""Do the tests notice what is wrong? `python -m tests.mutations --count 30 --seed 1`.

Plants one change at a time in a copy of the tree: in rules, panels, templates, values, the compose file or metrics.
Runs the tests that it reaches, the quick ones first, and prints who noticed. A change counts as noticed only if that
test fails a second time with it, and passes without it: when it first notices one, and again when all were looked for.
Exits with 1 if fewer than 19 of 20 were noticed. An unnoticed change takes a minute, one of a metric four: it is looked
for on the whole stack.
"""

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.harness.lanes import ROOT, reached, test_files
from tests.mutations.kinds import KINDS, Mutation, mutations
from tests.mutations.tree import NoVerdictError, TreeCopy

LEAST_SHARE: Final = 0.95
_MOST_UNFIT: Final = 3
"""So many tests may fail for another reason, such as a deadline on a busy machine; then the change is unnoticed."""
_QUICK: Final = ("unit", "contract", "observability", "compose", "chart")
_QUICK_OPS: Final = ("test_figures.py", "test_rules.py", "test_healthy_runs.py", "test_metrics.py")
_LIVE: Final = Path("tests/ops/test_whole_stack.py")
_HOMES: Final = {
    "helm/dashboards/": ("tests/observability", "tests/ops"),
    "helm/rollstream/files/": ("tests/ops", "tests/observability"),
    "helm/": ("tests/chart/test_renderings.py", "tests/chart"),
    "docker-compose.yml": ("tests/compose",),
    "": ("tests/unit",),
}
"""Where it is most likely that a change of such a file is noticed: these tests come first, in this order."""


def planned(root: Path, count: int, seed: int) -> list[Mutation]:
    """That many different changes. Each kind is as likely as any other, however many places it has."""
    chance = random.Random(seed)
    places = {kind: mutations(root, kind) for kind in KINDS}
    chosen: list[Mutation] = []
    while len(chosen) < min(count, sum(map(len, places.values()))):
        kind = chance.choice([kind for kind, left in places.items() if left])
        chosen.append(places[kind].pop(chance.randrange(len(places[kind]))))
    return chosen


def rounds(mutation: Mutation) -> list[list[str]]:
    """The tests to run, one list after the other as long as nothing is noticed."""
    return [tests for tests in _rounds(mutation) if tests]


def _rounds(mutation: Mutation) -> Iterator[list[str]]:
    found = reached([Path(mutation.file)], test_files())
    quick = [test for test in found if test.parent.name in _QUICK or test.name in _QUICK_OPS]
    if mutation.kind == "metric":
        # Of the many tests that a module reaches, those that speak of what is counted.
        quick = [test for test in quick if re.search("metric|exported", (ROOT / test).read_text(encoding="utf-8"))]
    homes = next(homes for start, homes in _HOMES.items() if mutation.file.startswith(start))
    yield [str(test) for test in sorted(quick, key=lambda test: (_place(test, homes), test))]
    if mutation.kind == "metric":
        name = re.findall(r"\b_?[A-Z][A-Z_]+", mutation.before)[0].strip("_").lower()
        buses = [test for test in found if test.parent.name in ("integration", "faults", "offline")]
        yield [str(test) for test in buses if name in (ROOT / test).read_text(encoding="utf-8")]
        yield [str(_LIVE)] * (_LIVE in found)


def _place(test: Path, homes: Sequence[str]) -> int:
    return next((place for place, home in enumerate(homes) if str(test).startswith(home)), len(homes))


def who_notices(tree: TreeCopy, mutation: Mutation, wanted: Sequence[Sequence[str]]) -> str | None:
    """The test that fails with the change each time, and passes without it."""
    unfit: list[str] = []
    for tests in wanted:
        while len(unfit) <= _MOST_UNFIT:
            with tree.planted(mutation) as refused:
                failed = None if refused else tree.first_failure(tests, but=unfit)
                fails_again = failed is not None and tree.first_failure([failed]) is not None
            if refused:
                return None if tree.made_from(mutation.file) else refused
            if failed is None:
                break
            if fails_again and tree.passes_as_it_is(failed):
                return failed
            unfit.append(failed)
    return None


def main(words: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="changes to plant")
    parser.add_argument("--seed", type=int, default=0, help="a seed gives the same changes of the same tree")
    parser.add_argument("--list", action="store_true", help="only say what would be planted")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        tree = TreeCopy(Path(directory))
        chosen = planned(tree.root, options.count, options.seed)
        if options.list:
            sys.stdout.writelines(f"{mutation}\n" for mutation in chosen)
            return 0
        # Before the first one: the tree here may change meanwhile, its copy does not.
        wanted = [rounds(mutation) for mutation in chosen]
        unnoticed = [one for one, tests in zip(chosen, wanted, strict=True) if not _looked_for(tree, one, tests)]
        share = 1 - len(unnoticed) / max(1, len(chosen))
        sys.stdout.write(f"{len(chosen) - len(unnoticed)} of {len(chosen)} noticed, seed {options.seed}\n")
        broken = tree.first_failure(sorted(tree.passing))
    if broken:
        sys.stdout.write(f"{broken} fails now without any change, so what it noticed says nothing\n")
    return 0 if share >= LEAST_SHARE and not broken else 1


def _looked_for(tree: TreeCopy, mutation: Mutation, wanted: Sequence[Sequence[str]]) -> bool:
    began = time.monotonic()
    try:
        who = who_notices(tree, mutation, wanted)
        said = f"noticed by {who}" if who else "UNNOTICED"
    except NoVerdictError as why:
        who, said = None, f"UNNOTICED, {why}"
    sys.stdout.write(f"{mutation}: {said}, {time.monotonic() - began:.0f} s\n")
    sys.stdout.flush()
    return who is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
