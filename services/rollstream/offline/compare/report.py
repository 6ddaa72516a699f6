"""What `rollstream compare-rollouts` prints: a table of the examples, the means, and what is missing; or JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollstream.offline.compare.comparison import Comparison, Side
from rollstream.offline.compare.examples import Example
from rollstream.process.terminal import escaped


def print_comparison(found: Comparison, console: Console) -> None:
    """Print the table, those whose reward fell most first, and the figures."""
    table = Table("example", "before", "after", "delta")
    for one in found.deltas:
        color = "red" if one.delta < 0 else "green" if one.delta > 0 else ""
        table.add_row(
            Text(_named(one, found)), f"{one.before:.3f}", f"{one.after:.3f}", Text(f"{one.delta:+.3f}", style=color)
        )
    console.print(table)
    for line in figures(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def figures(found: Comparison) -> list[str]:
    """The figures below the table."""
    lines = []
    hidden = found.num_matched - len(found.deltas)
    if hidden:
        lines.append(f"{hidden} more examples; --limit shows more, --output writes all")
    lines.append(
        f"{found.num_matched} examples, matched by {found.matched_by}: mean reward {found.mean_before:.3f} before, "
        f"{found.mean_after:.3f} after, mean delta {found.mean_delta:+.3f}"
    )
    for word, other, side in (("before", "after", found.before), ("after", "before", found.after)):
        lines += _bad(side, word)
        if side.num_missing:
            name = escaped(side.name)
            lines.append(f"{word} ({name}): {side.num_missing} examples are missing that have a reward {other}:")
            lines += _listed([_named(one, found) for one in side.missing], side.num_missing)
    return lines


def _named(example: Example, found: Comparison) -> str:
    # Prompts often begin alike.
    key, dash, number = example.key.partition("-")
    return f"{example.label} ({key[:8]}{dash}{number})" if found.matched_by == "prompt" else example.label


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return {
        "matched_by": found.matched_by,
        "num_matched": found.num_matched,
        "mean_before": found.mean_before,
        "mean_after": found.mean_after,
        "mean_delta": found.mean_delta,
        **{word: _side(side) for word, side in (("before", found.before), ("after", found.after))},
        "examples": [{**asdict(one), "delta": one.delta} for one in found.deltas],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "num_rows_with_reward": side.rewards.num,
        "num_rows_without_reward": side.rewards.num_without,
        "num_bad_rows": side.num_bad,
        "first_bad_rows": side.bad,
        "num_missing": side.num_missing,
        "first_missing": [asdict(one) for one in side.missing],
    }


def _bad(side: Side, word: str) -> list[str]:
    """What of one file counts nowhere."""
    lines, name = [], escaped(side.name)
    if side.rewards.num_without:
        lines.append(f"{word} ({name}): {side.rewards.num_without} rows have no reward; they count nowhere")
    if side.num_bad:
        lines.append(f"{word} ({name}): {side.num_bad} rows can't be read or name no example; they count nowhere:")
        lines += _listed(side.bad, side.num_bad)
    return lines


def _listed(first: Sequence[str], count: int) -> list[str]:
    return [*(f"   {escaped(one)}" for one in first), *(["   …"] if count > len(first) else [])]
