"""The collection core: what is asked, what is kept, what a second run asks again, and what it refuses."""

import json

import pytest

from rollstream.offline.ended import EndedSample
from rollstream.offline.summary import CollectSummary
from rollstream.offline.tasks import task_of
from rollstream.process.settings.declared import Declaration
from rollstream.process.settings.tools import ToolSettings
from rollstream.process.stop import Stop
from rollstream.rows.row import BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError, EngineDeadError, EngineError, TooManyFailuresError
from rollstream.schemas.prompt import AgentChoice
from tests.harness.collecting import (
    CountingEngine,
    a_job,
    collected,
    keys_of,
    lines_of,
    noted_facts,
    noted_samples,
    settings_for,
    some_prompts,
)
from tests.harness.unruly_environment import NAME, PATH


def asked_as(**fields):
    return task_of(ReadRow(3, "rows.jsonl line 4", fields), "prompt")


def roles(task):
    return [(message.role, message.content) for message in task.messages]


def an_ended(row=0, sample=0, **fields):
    values = {"row": row, "sample": sample, "attempts": 1, "status": "completed", "response": "yes"}
    return EndedSample(**{**values, **fields})


def a_failed(row=0, sample=0, attempts=1):
    return an_ended(row, sample, status="unresolved", response=None, failure="engine", attempts=attempts)


def test_text_is_one_user_message_and_a_list_keeps_its_roles():
    assert roles(asked_as(prompt="2+2?")) == [("user", "2+2?")]
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?", "tool_calls": None}]
    assert roles(asked_as(prompt=chat)) == [("system", "Be short."), ("user", "2+2?")]


def test_verls_row_gives_its_ground_truth_and_nested_values_travel_as_json_text():
    task = asked_as(prompt="2+2?", data_source="math", reward_model={"style": "rule", "ground_truth": 4}, none=None)
    assert task.reference_answer == "4"
    assert task.metadata["data_source"] == "math"
    assert json.loads(task.metadata["reward_model"]) == {"style": "rule", "ground_truth": 4}
    assert (list(task.fields), "none" in task.metadata) == (["data_source", "reward_model", "none"], False)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"question": "2+2?"}, "neither `prompt` nor `messages`, or nothing in it: its columns are ['question']"),
        ({"prompt": None}, "nothing in it"),
        ({"prompt": ""}, "nothing in it"),
        ({"prompt": 4}, "messages: 4"),
        ({"prompt": []}, "nothing in it"),
        ({"prompt": ["2+2?"]}, "no role that is known: '2+2?'"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "content is not text: [{'type': 'image'}]"),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "content is not text: [{'type': "),
        ({"prompt": [{"role": "user", "content": [{"type": "text"}]}]}, "content is not text: [{'type': 'text'}]"),
        ({"prompt": [{"role": "user", "content": "2+2?"}] * 5000}, "it has 5000 messages, more than 4096"),
        ({"prompt": "2+2?", **{f"column {n}": n for n in range(5000)}}, "it has 5000 columns, more than 4096"),
    ],
)
def test_a_row_without_a_usable_prompt_is_a_bad_row_that_says_why(fields, why):
    bad = asked_as(**fields)
    assert isinstance(bad, BadRow)
    assert (bad.number, bad.where) == (3, "rows.jsonl line 4")
    assert why in bad.why


def test_all_samples_are_written_in_the_order_of_the_rows_with_their_originals(tmp_path):
    source = some_prompts(tmp_path / "data.jsonl", 40)
    report = collected(source, settings_for(tmp_path / "out.jsonl", num_samples=3))
    rows = lines_of(tmp_path / "out.jsonl")
    assert keys_of(rows) == [(row, sample) for row in range(40) for sample in range(3)]
    first = {name: rows[7][name] for name in list(rows[7])[:12]}
    assert first == {
        "prompt": "00002=", "response": first["response"], "sample_idx": 1, "data_idx": 2, "temperature": 0.7,
        "top_p": 1.0, "max_tokens": 16, "status": "completed", "failure": None, "finish_reason": "stop",
        "original_answer": "00002", "original_extra_info": {"index": 2},
    }  # fmt: skip
    assert report.counts.most_in_flight == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "out.jsonl", "out.jsonl_progress.sqlite"]


def test_what_an_agent_and_its_tools_said_is_written_turn_by_turn(tmp_path):
    agents = {"adder": Declaration(path="tests.harness.tool_agents.Adder")}
    tools = {"count": ToolSettings(kind="python", path="tests.harness.own_tools.Box")}
    settings = settings_for(
        tmp_path / "out", agent=AgentChoice(name="adder", options={"turns": "2"}), agents=agents, tools=tools
    )
    report = collected(some_prompts(tmp_path / "rows.jsonl", 2), settings)
    rows = lines_of(tmp_path / "out")
    assert (len(rows), report.summary.num_completed) == (4, 4)
    for row in rows:
        turns = json.loads(row["turns"])
        assert [turn["turn_number"] for turn in turns] == [0, 1, 2]
        assert turns[-1]["text"] == row["response"]
        assert sum(turn["num_tokens"] for turn in turns) == row["num_tokens"]
        assert [answer["content"] for turn in turns for answer in turn["tool_answers"]] == ["1", "2"]


def test_a_complete_collection_is_not_asked_again(tmp_path):
    source = some_prompts(tmp_path / "data.jsonl", 3)
    collected(source, settings_for(tmp_path / "out.jsonl"))
    engine = CountingEngine()
    assert collected(source, settings_for(tmp_path / "out.jsonl"), engine).was_complete
    assert engine.asked == []


def test_a_failed_sample_has_no_response_is_listed_and_alone_is_asked_again_up_to_three_times(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 4), settings_for(tmp_path / "out.jsonl")
    engine = CountingEngine(lambda prompt: EngineError("no answer") if prompt == "00002=" else None)
    collected(source, settings, engine)
    rows = lines_of(tmp_path / "out.jsonl")
    assert [(row["response"], row["status"], row["failure"]) for row in rows[4:6]] == [
        (None, "unresolved", "engine")
    ] * 2
    assert all(row["response"] for row in rows[:4] + rows[6:])
    listed = lines_of(tmp_path / "out.jsonl_failures.jsonl")
    assert listed[1] == {
        "data_idx": 2, "sample_idx": 1, "where": "data.jsonl line 3", "stage": "generation", "failure": "engine",
        "message": "no answer", "attempts": 1, "terminal": False,
    }  # fmt: skip
    asked = []
    for _ in range(3):
        again = CountingEngine(engine.fails)
        collected(source, settings, again)
        asked.append(set(again.asked))
    assert asked == [{"00002="}, {"00002="}, set()]
    assert [line["attempts"] for line in lines_of(tmp_path / "out.jsonl_failures.jsonl")] == [3, 3]
    said = "\n".join(collected(source, settings, CountingEngine()).lines())
    assert "2 samples failed 3 times: they are not asked again without --retry-failed" in said
    collected(source, settings.model_copy(update={"max_attempts": 4}), CountingEngine())
    assert all(row["response"] for row in lines_of(tmp_path / "out.jsonl"))
    assert not (tmp_path / "out.jsonl_failures.jsonl").exists()
    assert noted_samples(tmp_path / "out.jsonl_progress.sqlite") == []


def test_bad_rows_are_listed_and_counted_and_the_others_asked(tmp_path):
    source = tmp_path / "data.jsonl"
    source.write_text('{"prompt": "1="}\n{"prompt": null}\n{"question": "2="}\n{"prompt": "3="}\n{torn\n')
    report = collected(source, settings_for(tmp_path / "out.jsonl", num_samples=1))
    assert keys_of(lines_of(tmp_path / "out.jsonl")) == [(0, 0), (3, 0)]
    listed = lines_of(tmp_path / "out.jsonl_failures.jsonl")
    assert [(line["data_idx"], line["stage"], line["failure"]) for line in listed] == [
        (row, "reading", "bad_prompt") for row in (1, 2, 4)
    ]
    assert report.summary is not None
    assert (report.summary.num_bad_rows, report.exit_code) == (3, 0)
    assert noted_facts(tmp_path / "out.jsonl_progress.sqlite")["counts"]["bad_rows"] == 3


def test_an_engine_that_answers_nothing_ends_the_collection_before_every_row_has_failed(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 400), settings_for(tmp_path / "out.jsonl")
    engine = CountingEngine(lambda prompt: EngineError("refused"))
    with pytest.raises(TooManyFailuresError, match="100 samples one after another had no answer"):
        collected(source, settings, engine)
    assert len(set(engine.asked)) < 70
    collected(source, settings)
    assert len(lines_of(tmp_path / "out.jsonl")) == 800


def test_a_dead_engine_ends_the_collection_which_goes_on_where_it_ended(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 300), settings_for(tmp_path / "out.jsonl")
    engine = CountingEngine(lambda prompt: EngineDeadError("GPU is gone") if prompt == "00200=" else None)
    with pytest.raises(EngineDeadError):
        collected(source, settings, engine)
    again = CountingEngine()
    collected(source, settings, again)
    assert len(again.asked) <= 2 * 100 + settings.concurrency
    assert len(set(keys_of(lines_of(tmp_path / "out.jsonl")))) == 600


def test_a_collection_that_is_told_to_stop_writes_no_output_and_goes_on_later(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 60), settings_for(tmp_path / "out.jsonl")
    stop = Stop()
    engine = CountingEngine(lambda prompt: stop.ask() if prompt == "00030=" else None)
    report = collected(source, settings, engine, stop)
    if report.summary is None:  # else it was done before it saw the request
        assert not (tmp_path / "out.jsonl").exists()
        assert report.exit_code == 130
    collected(source, settings)
    assert len(lines_of(tmp_path / "out.jsonl")) == 120


def test_a_resume_with_another_setting_is_refused_with_both_values_and_what_to_do(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 2), settings_for(tmp_path / "out.jsonl")
    collected(source, settings)
    other = settings.model_copy(update={"sampling": settings.sampling.model_copy(update={"temperature": 1.0})})
    with pytest.raises(ConfigurationError, match=r"temperature = 0\.7, now it is 1\.0: .*--overwrite"):
        collected(source, other)
    collected(source, other.model_copy(update={"overwrite": True}))
    assert {row["temperature"] for row in lines_of(tmp_path / "out.jsonl")} == {1.0}


@pytest.mark.parametrize("wrong", ["engine", "column"])
def test_what_was_collected_stays_until_a_collection_anew_can_replace_it(tmp_path, wrong):
    source, settings = some_prompts(tmp_path / "data.jsonl", 3), settings_for(tmp_path / "out.jsonl")
    collected(source, settings)
    kept = (tmp_path / "out.jsonl").read_bytes()
    anew = settings.model_copy(update={"num_samples": 1, "overwrite": True})
    if wrong == "engine":
        with pytest.raises(EngineDeadError):
            collected(source, anew, CountingEngine(lambda prompt: EngineDeadError("no GPU")))
    else:
        misspelt = tmp_path / "misspelt.jsonl"
        misspelt.write_text('{"promt": "1="}\n')
        with pytest.raises(ConfigurationError, match="it has neither `prompt` nor `messages`"):
            collected(misspelt, anew)
    assert (tmp_path / "out.jsonl").read_bytes() == kept
    collected(source, anew)
    assert len(lines_of(tmp_path / "out.jsonl")) == 3


def test_a_server_that_does_not_start_leaves_what_was_collected_as_it_is(tmp_path):
    class Absent(CountingEngine):
        async def start(self, weight_version):
            raise EngineDeadError("no server was ready")

    source, settings = some_prompts(tmp_path / "data.jsonl", 3), settings_for(tmp_path / "out.jsonl")
    collected(source, settings)
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(EngineDeadError):
        collected(source, settings.model_copy(update={"overwrite": True}), Absent())
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert collected(source, settings).was_complete


def test_a_directory_with_other_files_is_not_replaced_even_anew(tmp_path):
    source, output = some_prompts(tmp_path / "data.jsonl", 2), tmp_path / "out"
    settings, engine = settings_for(output, kind="hf"), CountingEngine()
    collected(source, settings)
    (output / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"other files \(notes\.txt\)"):
        collected(source, settings.model_copy(update={"overwrite": True}), engine)
    assert engine.asked == []
    assert (output / "notes.txt").read_text() == "mine"


def test_an_output_that_was_taken_away_is_written_anew_from_what_is_noted_as_long_as_a_sample_is_missing(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 3), settings_for(tmp_path / "out.jsonl", max_attempts=1)
    engine = CountingEngine(lambda prompt: EngineError("busy") if prompt == "00001=" else None)
    collected(source, settings, engine)
    before, num_asked = lines_of(tmp_path / "out.jsonl"), len(engine.asked)
    (tmp_path / "out.jsonl").unlink()
    collected(source, settings, engine)
    assert lines_of(tmp_path / "out.jsonl") == before
    assert len(engine.asked) == num_asked


def test_the_same_rows_are_gone_on_with_wherever_their_file_lies_by_now(tmp_path):
    source, moved = some_prompts(tmp_path / "prompts.jsonl", 3), tmp_path / "moved" / "prompts.jsonl"
    assert a_job(source, tmp_path / "out.jsonl").run(Stop(), print).summary is not None
    moved.parent.mkdir()
    source.rename(moved)
    assert a_job(moved, tmp_path / "out.jsonl").run(Stop(), print).was_complete


def test_a_resume_on_a_changed_input_is_refused(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 2), settings_for(tmp_path / "out.jsonl")
    collected(source, settings)
    some_prompts(source, 3)
    with pytest.raises(ConfigurationError, match="begun with input ="):
        collected(source, settings)


def test_a_file_that_somebody_else_wrote_is_not_replaced(tmp_path):
    source = some_prompts(tmp_path / "data.jsonl", 2)
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(ConfigurationError, match="name another output"):
        collected(source, settings_for(tmp_path / "out.jsonl"))
    assert (tmp_path / "out.jsonl").read_text() == "mine"


def test_settings_may_change_as_long_as_no_sample_has_ended(tmp_path):
    source, settings = some_prompts(tmp_path / "data.jsonl", 2), settings_for(tmp_path / "out.jsonl")
    dead = CountingEngine(lambda prompt: EngineDeadError("no GPU"))
    with pytest.raises(EngineDeadError):
        collected(source, settings, dead)
    collected(source, settings.model_copy(update={"num_samples": 3}))
    assert len(lines_of(tmp_path / "out.jsonl")) == 6


def test_a_file_in_which_no_row_has_the_prompts_column_is_refused_with_the_first_reason(tmp_path):
    source, settings = tmp_path / "data.jsonl", settings_for(tmp_path / "out.jsonl")
    source.write_text('{"question": "1="}\n{"question": "2="}\n')
    with pytest.raises(ConfigurationError, match=r"none of 2 rows .*line 1: it has neither `prompt` nor `messages`"):
        collected(source, settings)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_copy_that_cannot_be_written_leaves_all_for_the_next_call_which_asks_nothing(tmp_path):
    source, copy = some_prompts(tmp_path / "data.jsonl", 2), tmp_path / "taken" / "out.jsonl"
    settings = settings_for(tmp_path / "out", kind="hf", jsonl_copy=copy)
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigurationError, match=r"cannot write .*taken/out\.jsonl"):
        collected(source, settings)
    (tmp_path / "taken").unlink()
    again = collected(source, settings)
    assert again.counts.num_completed == 0
    assert len(lines_of(copy)) == 4
    copy.unlink()
    assert collected(source, settings).was_complete
    assert len(lines_of(copy)) == 4


def test_the_copy_is_written_while_the_output_is_still_held(tmp_path):
    lock = tmp_path / ".out.jsonl.lock"
    collected(some_prompts(tmp_path / "data.jsonl", 2), settings_for(tmp_path / "out.jsonl", jsonl_copy=lock))
    # A copy by the lock's own name goes when the lock is let go. One that was written afterwards would still be there.
    assert not lock.exists()


def test_samples_are_scored_and_the_end_says_what_is_worth_knowing(tmp_path):
    source = some_prompts(tmp_path / "data.jsonl", 30)
    settings = settings_for(tmp_path / "out.jsonl", environment="sort_digits")
    report = collected(source, settings)
    rows = lines_of(tmp_path / "out.jsonl")
    assert all(row["reward"] == float(row["response"] == row["original_answer"]) for row in rows)
    assert all(row["reward_exact_match"] == row["reward"] for row in rows)
    mean = sum(row["reward"] for row in rows) / 60
    assert f"mean {mean:.4f}, population standard deviation" in "\n".join(report.lines())
    assert (tmp_path / "out.jsonl_rewards.png").read_bytes().startswith(b"\x89PNG")


def test_a_sample_whose_reward_function_raises_has_a_response_no_reward_and_is_listed(tmp_path):
    source = tmp_path / "data.jsonl"
    source.write_text('{"prompt": "12=", "order": "raise"}\n{"prompt": "34=", "order": "give 0.5"}\n')
    settings = settings_for(
        tmp_path / "out.jsonl", environment=NAME, environments={NAME: Declaration(path=PATH)}, num_samples=1
    )
    report = collected(source, settings)
    broken, scored = lines_of(tmp_path / "out.jsonl")
    assert (broken["status"], broken["reward"], broken["scoring_failure"]) == ("completed", None, "bad_reward")
    assert broken["response"] is not None
    assert (scored["reward"], scored["scoring_failure"]) == (0.5, None)
    [listed] = lines_of(tmp_path / "out.jsonl_failures.jsonl")
    assert (listed["data_idx"], listed["stage"], listed["failure"]) == (0, "scoring", "bad_reward")
    assert report.summary is not None
    assert (report.summary.statistics.mean, report.summary.num_unscored) == (0.5, 1)


def test_the_summary_is_right_for_rewards_worked_by_hand():
    summary = CollectSummary()
    summary.see([an_ended(0, 0, reward=1.0), an_ended(0, 1, reward=0.0)])
    summary.see([an_ended(1, 0, reward=1.0, finish_reason="length"), an_ended(1, 1, reward=1.0)])
    summary.see([a_failed(2, 0), an_ended(2, 1, reward=None, scoring_failure="timeout")])
    # Of 1, 0, 1, 1; the standard deviation is divided by 4.
    assert summary.statistics.plain() == {"mean": 0.75, "std": pytest.approx(0.4330127), "min": 0.0, "max": 1.0}
    assert (summary.num_groups, summary.num_groups_without_spread) == (2, 1)
    assert summary.counts() == {
        "tasks": 3, "bad_rows": 0, "samples": 6, "completed": 5, "failed": 1, "truncated": 1, "scored": 4,
        "unscored": 1, "completion_tokens": 0,
    }  # fmt: skip
