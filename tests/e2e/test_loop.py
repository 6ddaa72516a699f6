"""The loop, all stages as processes on the real broker, checked by a client that shares no code with them."""

import urllib.request
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rollstream.local.metric_list import all_metrics
from rollstream.local.ports import free_ports
from tests.chaos.accounting import OutsideClient
from tests.chaos.records import encoded_prompt
from tests.harness.loops import GROUPS_PER_STEP, SHARE, STAGES, Loop, a_loop
from tests.harness.running import Run
from tests.harness.waits import wait_until

# Of faults that do not happen here, of a wait that may not be needed, and of figures that may be 0 on a healthy run.
MAY_STAY_AT_ZERO = {
    "rollstream_bus_handler_failures_total",
    "rollstream_bus_paused_ratio",
    "rollstream_generator_deadline_cuts_total",
    "rollstream_generator_engine_errors_total",
    "rollstream_generator_given_back_tokens_total",
    "rollstream_generator_policy_lag_steps",
    "rollstream_generator_progress_total",
    "rollstream_generator_resumed_samples_total",
    "rollstream_generator_stale_since_timestamp_seconds",
    "rollstream_generator_turns_begun_anew_total",
    "rollstream_producer_flat_groups",
    "rollstream_producer_ghost_groups_total",
    "rollstream_producer_ingested_prompts_total",
    "rollstream_producer_pool_prompts_total",
    "rollstream_producer_pool_tasks",
    "rollstream_producer_refused_progress_total",
    "rollstream_producer_strangers_prompts_total",
    "rollstream_scorer_rewards_at_timeout_total",
    "rollstream_tools_call_seconds",
    "rollstream_tools_calls_total",
    "rollstream_tools_open_sessions",
    "rollstream_tools_sessions_total",
    "rollstream_tracing_dropped_spans_total",
    "rollstream_tracing_exported_spans_total",
    "rollstream_trainer_clip_fraction_high",
    "rollstream_trainer_clip_fraction_low",
    "rollstream_trainer_duplicate_records_total",
    "rollstream_trainer_entropy_bonus",
    "rollstream_trainer_importance_weight_capped_ratio",
    "rollstream_trainer_importance_weight_masked_ratio",
    "rollstream_trainer_kl",
    "rollstream_trainer_mismatch_kl_lag_0",
    "rollstream_trainer_mismatch_kl_lagged",
    "rollstream_trainer_missing_ratio",
    "rollstream_trainer_ones_reward_mean",
    "rollstream_trainer_served_policy_lag_max",
    "rollstream_trainer_served_policy_lag_mean",
    "rollstream_trainer_served_ratio",
    "rollstream_trainer_truncated_ratio",
    "rollstream_trainer_waiting_for_late_seconds",
}


def test_every_prompt_ends_in_the_ledger_and_bad_ones_disturb_nobody(run: Run, model: Path) -> None:
    with a_loop(run, model) as loop:
        ports = dict(zip(STAGES, free_ports(len(STAGES)), strict=True))
        for stage, port in ports.items():
            run.tables.setdefault(stage, {})["health_port"] = port
        outside = loop.outside
        served, asked, unknown, too_long, replayed = (uuid.uuid4().hex for _ in range(5))
        garbage = (b"garbage", None, b"\0\0\0\0\x63abc", encoded_prompt("31=")[:20])
        outside.put(
            "prompts",
            encoded_prompt("31=", group_id=served, environment="sort_digits", reference_answer="13", group_size=2),
            *garbage,
            encoded_prompt("31=", group_id=unknown, environment="no_such_thing", purpose="train", group_size=2),
            encoded_prompt("7" * 40 + "=", group_id=too_long, environment="sort_digits", purpose="train", group_size=2),
        )
        # In the lane of clients nothing trains, whatever it says.
        outside.put(
            "serve-prompts",
            encoded_prompt("31=", group_id=asked, environment="sort_digits", purpose="train", group_size=2),
        )
        # The commands as people start them; the stages of other tests share their imports.
        for stage in STAGES:
            loop.keep_alive(stage, partial(run.start_as_people_do, stage))
        account = loop.until_account(
            lambda account: {served, unknown, too_long} <= account.closed.keys() and account.steps,
            "the outside client's groups to close",
        )
        closed = account.closed[served]
        assert (closed["outcome"], closed["reason"]) == ("dropped", "not_for_training")
        assert {sample["scoring"]["reward"] for sample in account.samples(served)} <= {0.0, 1.0}
        assert len(account.samples(served)) == 2
        for group, why in ((unknown, "unknown_environment"), (too_long, "prompt_too_long")):
            assert account.closed[group]["reason"] == "failed"
            assert all(sample["scoring"]["failure"]["code"] == why for sample in account.samples(group))
        assert set(outside.dead_letters()) == set(garbage)

        check_metrics(loop, ports)
        loop.until(lambda: len(answers_to(outside, asked)) == 2, "the client's answers")

        # A prompt of which an older stage left a letter. It is handled meanwhile, so that its replay is a duplicate.
        left = encoded_prompt("520=", group_id=replayed, environment="sort_digits", purpose="train", group_size=4)
        (place,) = outside.put("prompts", left)
        outside.put("dead-letters", left, headers=dead_letter_headers(f"{run.name}.prompts", *place))
        assert f".prompts/{place[0]}/{place[1]}\n" in run.command("dead-letters", "replay", "--all")
        loop.until_account(lambda account: replayed in account.closed, "the replayed prompt to close")

        account = loop.end()
        assert account.num_trained == account.steps * GROUPS_PER_STEP
        assert len(account.samples(replayed)) >= 1
        published = [record["weight_version"] for record in outside.records("weights")]
        assert published == [entry["weight_version"] for entry in account.ledger if entry["kind"] != "drops"]
        assert published == list(range(len(published)))
        named = {group["group_id"] for entry in account.ledger for group in entry["closed"]}
        assert not named & {record["group_id"] for record in outside.records("serve-prompts")}
        assert asked not in account.prompts
        loop.until(lambda: published[-1] in applied_versions(outside), "the last version to be applied")


def check_metrics(loop: Loop, ports: Mapping[str, int]) -> None:
    """What the stages export is on the list of all metrics, with its type and labels; and the list promises no more."""
    # These are no stages of the loop, or serve clients, whom it has none of.
    others = ("collect", "evaluate", "feedback", "http", "ingest", "serve", "states")
    listed = {metric.name: metric for metric in all_metrics() if metric.stage not in others}
    loop.until(lambda: "rollstream_trainer_topic_records{" in scraped(ports["trainer"]), "sizes of topics")
    texts = {stage: scraped(port) for stage, port in ports.items()}
    families = [family for text in texts.values() for family in text_string_to_metric_families(text)]
    for family in families:
        if family.name.startswith("rollstream_"):
            metric = listed[f"{family.name}_total" if family.type == "counter" else family.name]
            labels = {name for sample in family.samples for name in sample.labels} - {"le"}
            assert (family.type, family.documentation) == (metric.kind, metric.meaning)
            assert not labels or labels == set(metric.labels), metric
    exported = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert listed.keys() <= exported
    at_zero = listed.keys() - MAY_STAY_AT_ZERO

    def all_have_moved() -> bool:
        at_zero.difference_update(name for port in ports.values() for name in moved(scraped(port)))
        return not at_zero

    wait_until(all_have_moved, lambda: f"metrics to leave 0: {sorted(at_zero)}")
    # Read again where a step is being exported.
    loop.until(lambda: lags_and_ages_agree(scraped(ports["trainer"])), "each trained token to be counted by its lag")


def moved(text: str) -> set[str]:
    """The metrics that are not 0 now."""
    families = [family for family in text_string_to_metric_families(text) if any(one.value for one in family.samples)]
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def lags_and_ages_agree(text: str) -> bool:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    values = {sample.name.removeprefix("rollstream_trainer_"): sample.value for sample in samples}
    num_trained = values["step"] * GROUPS_PER_STEP
    has_ages = values["group_age_seconds_count"] == num_trained and values["group_age_seconds_sum"] > 0
    return has_ages and values["token_policy_lag_steps_count"] == values["trained_tokens_total"] > 0


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def applied_versions(outside: OutsideClient) -> set[int]:
    return {r["weight_version"] for r in outside.records("weights-applied") if r["outcome"] == "applied"}


def evaluated_groups(outside: OutsideClient) -> set[str]:
    return {record["rollout"]["group_id"] for record in outside.records("eval-scored")}


def answers_to(outside: OutsideClient, group: str) -> set[str]:
    """The scored samples of a prompt of the lane of clients."""
    rollouts = (record["rollout"] for record in outside.records("serve-scored"))
    return {rollout["rollout_id"] for rollout in rollouts if rollout["group_id"] == group}


def dead_letter_headers(topic: str, partition: int, offset: int) -> dict[str, str]:
    return {
        "original.topic": topic,
        "original.partition": str(partition),
        "original.offset": str(offset),
        "original.timestamp": "0",
        "consumer.group": f"{topic.removesuffix('.prompts')}.generators",
        "error.class": "DecodeError",
        "error.message": "unknown schema id",
        "attempts": "1",
        "failed_at": "2026-03-01T12:00:00+00:00",
        "schema_id": "1",
    }


def test_without_spread_prompts_keep_flowing_and_without_a_trainer_they_stop_at_the_credit(
    run: Run, model: Path
) -> None:
    with a_loop(run, model, correct_ratio=1.0, token_seconds=0.0) as loop:
        loop.start()
        loop.until_account(lambda account: account.dropped["no_spread"] >= 2 * SHARE, "twice the credit")
        loop.stop("trainer")
        stopped = loop.until_account(
            lambda account: len(account.open_groups) == SHARE and not account.unfinished, "the credit to be used up"
        )
        # Whoever would submit or generate more has had the time for it that an evaluation takes.
        evaluated = uuid.uuid4().hex
        asked = encoded_prompt("31=", group_id=evaluated, environment="sort_digits", purpose="evaluate")
        loop.outside.put("eval-prompts", asked)
        loop.until(lambda: evaluated in evaluated_groups(loop.outside), "the evaluation")
        later = loop.outside.account()
        assert later.prompts.keys() == stopped.prompts.keys()
        assert len(later.rollouts) == len(stopped.rollouts)
        loop.start("trainer")
        account = loop.until_account(lambda account: len(account.prompts) > len(later.prompts) + SHARE, "more prompts")
        assert set(account.dropped) == {"no_spread"}
        assert account.steps == 0
