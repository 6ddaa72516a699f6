# Short names for what CONTRIBUTING.md describes; `just` lists them.

default:
    @just --list

# Install what the lock file says.
sync:
    uv sync --frozen

# Everything that a change must pass.
ci:
    .ci/run

# Linters, types and layers, without the tests.
check:
    uv run --no-sync ruff check
    uv run --no-sync ruff format --check
    uv run --no-sync mypy
    uv run --no-sync lint-imports
    uv run --no-sync rollstream schemas check

# Write what the formatter and the safe fixes of the linter would.
format:
    uv run --no-sync ruff check --fix
    uv run --no-sync ruff format

# The suite, or a part of it: just test tests/unit
test *words:
    uv run --no-sync pytest {{ words }}

# The lanes that a change reaches, and the files in each; the change is what differs from main, or from another base.
lanes *base:
    uv run --no-sync python -m tests.harness.lanes {{ base }}

# The lane that needs Debian's prometheus, or takes long: ACLs, object storage, alerts.
ops:
    uv run --no-sync pytest tests/ops

# The long campaigns.
slow:
    uv run --no-sync pytest -m slow tests

# Planted mistakes and the long campaigns: hours.
night *seed:
    .ci/night {{ seed }}

# The whole loop on this machine.
demo *words:
    uv run --no-sync rollstream demo {{ words }}

# After a change of a record's model.
schemas:
    uv run --no-sync rollstream schemas update
