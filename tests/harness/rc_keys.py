"""The table of keys in the README of the Reasoning Cache actor: `python -m tests.harness.rc_keys` writes it."""

import json
from collections.abc import Iterator
from typing import Final

from rollstream.process.settings.keys import Key, keys_of
from rollstream.rc_actor.refused import NEUTRAL, REFUSED
from rollstream.rc_actor.settings import DatasetSettings, RCSettings
from tests.harness.syntax import ROOT

README: Final = ROOT / "services/rollstream/rc_actor/README.md"
BEGIN: Final = "<!-- keys: written by python -m tests.harness.rc_keys -->\n"
END: Final = "<!-- end of keys -->\n"
DATASETS: Final = ("train_dataset_names", "test_dataset_names")
_LONGEST_DEFAULT: Final = 70


def used_keys() -> dict[str, Key]:
    """Every key that has a value of its own, by its place; of tables with fixed keys those below."""
    keys = keys_of(RCSettings)
    tables = {key.path[:-1] for key in keys}
    found = {".".join(key.path): key for key in keys if key.path not in tables}
    below = {".".join(key.path): key for key in keys_of(DatasetSettings)}
    return found | {f"{DATASETS[0]}.N.{name}": key for name, key in below.items()}


def table() -> str:
    """One line for each key: what it does here, or why it is refused."""
    lines = ["| key | default | here |", "| --- | --- | --- |", *_used(), *_refused()]
    return "\n".join(lines) + "\n"


def _used() -> Iterator[str]:
    for place, key in used_keys().items():
        bound = f" ({key.bound})" if key.bound and "pattern" not in key.schema else ""
        yield f"| `{place}` | {_default(key)} | {key.meaning}{bound} |"


def _default(key: Key) -> str:
    if key.is_required:
        return "required" if key.path != ("end",) else ""
    text = json.dumps(key.default, ensure_ascii=False)
    return f"`{text}`" if len(text) <= _LONGEST_DEFAULT else "a template of ours"


def _refused() -> Iterator[str]:
    for place, reason in REFUSED.items():
        neutral = f"`{json.dumps(NEUTRAL[place])}` or " if place in NEUTRAL else ""
        yield f"| `{place}` | {neutral}`null` | refused: {reason} |"


def written(text: str) -> str:
    """The README with the table as it must be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
