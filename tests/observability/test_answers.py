"""What is put into an expression of a dashboard, as Grafana does."""

import pytest

from tests.observability.answers import Span, put_in


def test_a_rate_goes_over_four_scrapes_at_least_as_in_grafana() -> None:
    assert Span(start=0, end=600, step=4, scrape=15).intervals["__rate_interval"] == "60s"
    assert Span(start=0, end=600, step=100, scrape=15).intervals["__rate_interval"] == "115s"
    assert put_in("increase(x[$__range])", Span(start=0, end=600, step=4, scrape=15).intervals) == "increase(x[600s])"


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="topic"):
        put_in('x{topic=~"$topic"}', {"run": "math"})
