"""The list of what has no data: it names only what is asked for, and comparing with it finds every difference."""

import pytest

from tests.observability.answers import Span, put_in
from tests.observability.expressions import own_metrics
from tests.observability.questions import Silence, questions, selectors
from tests.observability.without_data import AT_REST, EXPRESSIONS, MOVES_IN, SELECTORS


def test_what_is_listed_as_without_data_is_asked_for() -> None:
    asked = questions()
    names = {selector.name for question in asked for selector in selectors(without_variables(question.expr))}
    assert SELECTORS.keys() - names == set()
    assert EXPRESSIONS.keys() - {question.place for question in asked} == set()
    assert len({question.place for question in asked}) == len(asked)


def test_what_several_stages_export_is_at_rest_or_said_to_move_where_it_does() -> None:
    of_several = {name for name in own_metrics() if name.startswith(("rollstream_bus_", "rollstream_process_"))}
    assert MOVES_IN.keys() | AT_REST.keys() >= of_several
    assert not MOVES_IN.keys() & AT_REST.keys()
    assert AT_REST.keys() <= own_metrics().keys()


def without_variables(expr: str) -> str:
    for name in ("$__rate_interval", "$__range", "$__interval"):
        expr = expr.replace(name, "1m")
    return expr


def test_a_selector_is_named_without_the_run_and_what_it_is_compared_with() -> None:
    found = selectors('sum(increase(a{run="$run", b=~"[.]c", d="e"}[5m] offset 1h)) > scalar(f{run!=""})')
    assert [one.name for one in found] == ['a{b=~"[.]c", d="e"}', "f"]
    assert found[0].text == 'a{run="$run", b=~"[.]c", d="e"}'


def test_what_differs_from_the_list_is_found() -> None:
    silence = Silence(
        expressions={"of a listed selector": {"listed"}, "new": {"other"}, "listed place": {"other"}},
        selectors={"listed", "silent"},
        known={"listed", "silent", "other", "loud", "of a listed selector", "new", "listed place"},
    )
    assert silence.faults({"listed", "loud"}, {"listed place", "gone", "of a listed selector"}) == [
        "nothing asks for it any more: gone",
        "no data, and not listed: new",
        "no data, and not listed: silent",
        "listed, and needs no entry: loud",
        "listed, and needs no entry: of a listed selector",
    ]
    assert silence.faults({"listed", "silent"}, {"listed place", "new"}) == []


def test_a_rate_goes_over_four_scrapes_at_least_as_in_grafana() -> None:
    assert Span(start=0, end=600, step=4, scrape=15).intervals["__rate_interval"] == "60s"
    assert Span(start=0, end=600, step=100, scrape=15).intervals["__rate_interval"] == "115s"
    assert put_in("increase(x[$__range])", Span(start=0, end=600, step=4, scrape=15).intervals) == "increase(x[600s])"


def test_a_variable_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="topic"):
        put_in('x{topic=~"$topic"}', {"run": "math"})
