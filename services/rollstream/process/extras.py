"""Which extra of this project brings a package that is not installed."""

import re
from importlib.metadata import PackageNotFoundError, requires

from rollstream.schemas.errors import ConfigurationError


def missing_extra(error: ModuleNotFoundError) -> ConfigurationError | None:
    """What to install; None if the package that was not found comes with no extra, as with code of the user."""
    package = _plain((error.name or "").partition(".")[0])
    extras = sorted({extra for name, extra in _required() if _plain(name) == package})
    if not extras:
        return None
    return ConfigurationError(
        f"{error.name} is not installed here, which this command needs: it comes with the extra {' or '.join(extras)} "
        f"(`uv sync --extra {extras[0]}`)"
    )


def _required() -> list[tuple[str, str]]:
    """Packages of this project's extras, each with its extra."""
    try:
        words = requires("rollstream") or []
    except PackageNotFoundError:
        return []
    found = (re.match(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""", word) for word in words)
    return [(match[1], match[2]) for match in found if match]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
