"""What `rollstream compare-rollouts` prints: a table of the examples, the means, and what is missing; or JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollstream.collect.compare.comparison import Comparison, Side
from rollstream.process.terminal import escaped


def print_comparison(found: Comparison, console: Console) -> None:
    """Print the table, those whose reward fell most first, and the figures."""
    table = Table("example", "before", "after", "delta")
    for one in found.deltas:
        color = "red" if one.delta < 0 else "green" if one.delta > 0 else ""
        # Prompts often begin alike.
        label = f"{one.label} ({one.key[:8]})" if found.matched_by == "prompt" else one.label
        table.add_row(Text(label), f"{one.before:.3f}", f"{one.after:.3f}", Text(f"{one.delta:+.3f}", style=color))
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
        lines += _notes(side, word, other)
    return lines


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
        "first_bad_rows": list(side.bad),
        "num_missing": side.num_missing,
        "first_missing": list(side.missing),
    }


def _notes(side: Side, word: str, other: str) -> list[str]:
    """What of one file does not count in the mean delta."""
    lines, name = [], escaped(side.name)
    if side.rewards.num_without:
        lines.append(f"{word} ({name}): {side.rewards.num_without} rows have no reward; they count nowhere")
    if side.num_bad:
        lines.append(f"{word} ({name}): {side.num_bad} rows can't be read or name no example; they count nowhere:")
        lines += _listed(side.bad, side.num_bad)
    if side.num_missing:
        lines.append(f"{word} ({name}): {side.num_missing} examples are missing that have a reward {other}:")
        lines += _listed(side.missing, side.num_missing)
    return lines


def _listed(first: Sequence[str], count: int) -> list[str]:
    return [*(f"   {escaped(one)}" for one in first), *(["   …"] if count > len(first) else [])]
