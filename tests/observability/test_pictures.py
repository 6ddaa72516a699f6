"""The pictures of the dashboards, and how values and variables are written for them."""

import pytest

from helm.dashboards.answers import Span, put_in
from helm.dashboards.pictures import FOLDER, MOST_BYTES, picture_path
from helm.dashboards.units import written
from tests.observability.boards import NAMES, board
from tests.observability.expressions import ROOT

PNG = b"\x89PNG\r\n"


def test_every_dashboard_has_its_picture_and_the_readme_shows_it() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {picture_path(name).name for name in NAMES}
    readme = (ROOT / "helm" / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        content = picture_path(name).read_bytes()
        assert content.startswith(PNG), name
        assert len(content) <= MOST_BYTES, name
        title = board(name)["title"].removeprefix("rollstream / ")
        assert f"![{title}](pictures/{picture_path(name).name})" in readme


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "none", "0"),
        (0.0, "percentunit", "0 %"),
        (0.256, "percentunit", "25.6 %"),
        (-0.5, "percentunit", "-50 %"),
        (0.0021, "s", "2.1 ms"),
        (90.0, "s", "1.5 min"),
        (7200.0, "s", "2 h"),
        (0.5, "h", "30 min"),
        (3 * 2**20, "bytes", "3 MiB"),
        (12_345.0, "suffix: tokens/s", "12.3k"),
        (1_500_000.0, "none", "1.5M"),
        (9_999.0, "none", "9999"),
        (0.12345, "suffix: nats", "0.123"),
    ],
)
def test_values_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


def test_a_rate_goes_over_four_scrapes_at_least_as_in_grafana() -> None:
    assert Span(start=0, end=600, step=4, scrape=15).intervals["__rate_interval"] == "60s"
    assert Span(start=0, end=600, step=100, scrape=15).intervals["__rate_interval"] == "115s"
    assert put_in("increase(x[$__range])", Span(start=0, end=600, step=4, scrape=15).intervals) == "increase(x[600s])"


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="topic"):
        put_in('x{topic=~"$topic"}', {"run": "math"})
