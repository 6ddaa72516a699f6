"""The dashboards: as the script makes them, and with the conventions that all share."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from helm.dashboards.build import FOLDER, as_json, path_of
from tests.observability.boards import NAMES, board, charts, expressions, panels
from tests.observability.commands import commands_in, problem_of
from tests.observability.expressions import asked, grouped_by, known_metrics, nodes, own_metrics, rules

each_board = pytest.mark.parametrize("name", NAMES)
UNITS = {"none", "percentunit", "s", "h", "bytes"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@each_board
def test_a_dashboard_is_what_the_script_makes(name: str) -> None:
    assert path_of(name).read_text(encoding="utf-8") == as_json(name), "make it again: python -m helm.dashboards.build"


def test_there_is_no_other_dashboard() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"rollstream-{name}.json" for name in NAMES}
    assert set(NAMES) == {"overview", "pipeline", "generators", "trainer", "quality", "kafka", "serving"}


@each_board
def test_a_dashboard_has_the_shared_frame(name: str) -> None:
    made = board(name)
    assert (made["uid"], made["tags"], made["editable"]) == (f"rollstream-{name}", ["rollstream"], False)
    assert made["title"].startswith("rollstream / ")
    assert made["schemaVersion"] >= 39
    assert made["description"]
    assert (made["time"], made["refresh"]) == ({"from": "now-6h", "to": "now"}, "30s")
    assert "__inputs" not in made
    assert path_of(name).stat().st_size < 200_000
    # It leads to the others with run and time.
    (link,) = made["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == (
        "dashboards", ["rollstream"], True, True,
    )  # fmt: skip


@each_board
def test_data_source_and_run_are_chosen_by_variables_and_all_is_drawn_from_them(name: str) -> None:
    made = board(name)
    source, run, *others = made["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (run["name"], run["query"], run["multi"]) == ("run", 'label_values(up{run!=""}, run)', False)
    for variable in (run, *others):
        assert (variable["type"], variable["datasource"], variable["refresh"]) == ("query", SOURCE, 2)
    for variable in others:
        assert "$run" in variable["query"], "the choice must be of this run"
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".+")
    assert all(one["datasource"] == SOURCE for one in [*charts(name), *made["annotations"]["list"]])
    assert set(re.findall(r'"uid": "([^"]+)"', json.dumps(made))) == {"${datasource}", made["uid"]}


@each_board
def test_every_panel_has_its_place_and_says_what_it_shows(name: str) -> None:
    made = board(name)["panels"]
    assert len({panel["id"] for panel in made}) == len(made)
    taken = [cell for panel in made for cell in _cells(panel["gridPos"])]
    assert len(taken) == len(set(taken))
    assert all(0 <= column < 24 for column, _ in taken)
    for panel in panels(name):
        # Others have been dropped by Grafana.
        assert panel["type"] in {"timeseries", "stat", "heatmap", "text"}
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]


@each_board
def test_every_chart_has_its_unit_and_queries_that_are_told_apart(name: str) -> None:
    for panel in charts(name):
        unit, targets = panel["fieldConfig"]["defaults"]["unit"], panel["targets"]
        assert unit in UNITS or unit.startswith("suffix: "), (panel["title"], unit)
        assert {found for target in targets if (found := _unit_of(target["expr"])) is not None} <= {unit}
        assert targets, panel["title"]
        assert len({target["refId"] for target in targets}) == len(targets), panel["title"]
        assert len(targets) == 1 or all(target["legendFormat"] != "__auto" for target in targets), panel["title"]


def _unit_of(expr: str) -> str | None:
    """The unit that the name of a single gauge tells."""
    found = [one.metric for one in asked(expr)]
    if len(found) != 1 or found[0].endswith(("_bucket", "_total", "per_second")):
        return None
    endings = {"_seconds": "s", "_bytes": "bytes", "_ratio": "percentunit", "_timestamp_seconds": "s"}
    return next((unit for ending, unit in endings.items() if found[0].endswith(ending)), None)


def _cells(place: dict[str, int]) -> list[tuple[int, int]]:
    columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return [(column, row) for column in columns for row in rows]


@each_board
def test_annotations_mark_starts_rollbacks_and_versions(name: str) -> None:
    found = {one["name"]: (one["enable"], one["expr"]) for one in board(name)["annotations"]["list"]}
    assert set(found) == {"Process started", "Steps cut by a rollback or restart", "Weight version published"}
    assert [is_on for is_on, _ in found.values()] == [True, True, False]
    for metric in ("process_start_time_seconds", "rollstream_trainer_step", "rollstream_trainer_weight_version"):
        assert any(metric in expr for _, expr in found.values())


@each_board
def test_every_expression_asks_for_metrics_and_labels_of_this_run_that_exist(name: str) -> None:
    known = known_metrics()
    marks = {one["name"] for one in board(name)["annotations"]["list"]}
    for title, expr in expressions(name):
        metrics = list(asked(expr))
        assert nodes(expr), title
        for one in metrics:
            assert one.metric in known, (title, one.metric)
            assert one.labels <= known[one.metric], (title, one)
        assert grouped_by(expr) <= {label for one in metrics for label in known[one.metric]}, (title, expr)
        if "kafka_brokers" not in expr:
            assert all(one.labels & {"run", "topic", "consumergroup"} for one in metrics), (title, expr)
            assert "$run" in expr, title
        # What a rule records is a little older than what was scraped since: it may be of the step before.
        assert len({one.metric.endswith(":step") for one in metrics}) == 1, (title, expr)
        # Rates are taken over Grafana's interval, and counters never raw.
        windows = set(re.findall(r"\[(\$?\w+)\]", expr))
        assert title in marks or windows <= {"$__rate_interval", "$__range"}, (title, expr)
        if title not in ("Dead letters", "Prompts passed over"):  # a few, since the start of each process
            raw = [one.metric for one in metrics if one.metric.endswith("_total")]
            assert not raw or re.search(r"(rate|increase)\(", expr), (title, raw)


@each_board
def test_legends_name_labels_that_the_series_have(name: str) -> None:
    known = known_metrics()
    for panel in charts(name):
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = grouped_by(target["expr"]) or {label for one in asked(target["expr"]) for label in known[one.metric]}
            assert shown <= left, (panel["title"], shown, left)


def test_the_overview_answers_four_questions_and_shows_how_to_trace_a_step() -> None:
    rows = [panel["title"] for panel in board("overview")["panels"] if panel["type"] == "row"]
    assert rows[:4] == ["Is it learning?", "Is anything lost?", "Who waits for whom?", "What does a token cost?"]
    assert "rollstream lineage STEP" in _texts("overview")
    assert "rollstream lineage STEP" in _texts("trainer")


def test_every_command_in_a_panel_exists() -> None:
    found = [command for name in NAMES for command in commands_in(_texts(name) + _descriptions(name))]
    assert len(found) > 5
    for command in found:
        assert problem_of(command) is None, (command, problem_of(command))


def _texts(name: str) -> str:
    return "\n".join(panel["options"]["content"] for panel in panels(name) if panel["type"] == "text")


def _descriptions(name: str) -> str:
    return "\n".join(str(panel["description"]) for panel in panels(name))


def test_every_metric_of_the_stages_is_shown_or_named_here() -> None:
    exprs = [expr for name in NAMES for _, expr in expressions(name)] + [rule["expr"] for rule in rules("recording")]
    shown = {_family(one.metric) for expr in exprs for one in asked(expr)}
    left = {_family(metric) for metric in own_metrics()} - shown
    # Collections belong to no run, which the dashboards are of.
    of_collections = {name for name in left if name.startswith("rollstream_collect_")}
    # Its position in its source, which says nothing without the length of the source.
    assert left - of_collections == {"rollstream_producer_sequence"}


def test_what_is_asked_of_vllm_is_exported_by_the_vllm_that_is_installed() -> None:
    # Not imported: that takes seconds.
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / "v1" / "metrics" / "loggers.py").read_text(encoding="utf-8")
    exported = set(re.findall(r'name="(vllm:\w+)"', source))
    used = {re.sub("_(total|bucket)$", "", name) for name in _foreign("vllm:")}
    assert len(used) > 8
    assert used <= exported


def test_panels_of_vllm_say_what_must_be_set() -> None:
    of_vllm = [panel for panel in charts("generators") if any("vllm:" in one["expr"] for one in panel["targets"])]
    assert len(of_vllm) == 7
    for panel in of_vllm:
        assert "`vllm_metrics = true` in `[generator.engine]`" in panel["description"], panel["title"]


def _foreign(prefix: str) -> set[str]:
    exprs = [expr for name in NAMES for _, expr in expressions(name)]
    return {one.metric for expr in exprs for one in asked(expr) if one.metric.startswith(prefix)}


def _family(metric: str) -> str:
    return re.sub("_(bucket|sum|count)$", "", metric)
