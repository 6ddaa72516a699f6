"""When the alerts on answers to clients and on their feedback fire."""

from tests.ops.rule_tests import case, instance, series

_ANSWERS = "rollstream_serve_answers_total"
_REQUESTS = "rollstream_http_requests_total"
_FIRST_TOKEN = "rollstream_serve_time_to_first_token_seconds_bucket"
_LANE = "rollstream_generator_training_lane_ready"


def _requests(code: str, values: str) -> dict[str, str]:
    return series(_REQUESTS, "generator", values, server="generator", route="/v1/chat/completions", code=code)


def _first_tokens(within_seconds: str, values: str) -> dict[str, str]:
    return {
        **series(_FIRST_TOKEN, "generator", values, le=within_seconds),
        **series(_FIRST_TOKEN, "generator", "0+60x70", le="+Inf"),
    }


def _feedback(unmatched: str) -> dict[str, str]:
    return {
        **series("rollstream_feedback_read_total", "producer", "0+10x70"),
        **series("rollstream_feedback_unmatched_total", "producer", unmatched, reason="no_answer"),
    }


def _answers(recorded: str, published: str) -> dict[str, str]:
    return {
        **series(_ANSWERS, "generator", recorded, outcome="recorded"),
        **series("rollstream_feedback_published_total", "producer", published),
    }


def _ingest(refused: str) -> dict[str, str]:
    return {
        **series("rollstream_ingest_refused_total", "ingest", refused, reason="not_confirmed"),
        **series("rollstream_ingest_accepted_total", "ingest", "0+10x70", kind="feedback"),
    }


def _spool(num_bytes: str) -> dict[str, str]:
    return {
        **series("rollstream_serve_spool_bytes", "generator", num_bytes),
        **series("rollstream_serve_spool_limit_bytes", "generator", "1000x70"),
    }


CASES = (
    case(
        "RollstreamAnswersUnrecorded",
        series(_ANSWERS, "generator", "0x50 0+1x20", outcome="unrecorded"),
        series(_ANSWERS, "generator", "0x70", outcome="unrecorded"),
        series(_ANSWERS, "generator", "0+10x70", outcome="recorded"),
        instance=instance("generator"),
    ),
    case(
        "RollstreamSpoolGrows",
        _spool("600x70"),
        _spool("400x70"),
        stage="generator",
        instance=instance("generator"),
    ),
    case(
        "RollstreamServingErrors",
        {**_requests("200", "0+9x70"), **_requests("503", "0+1x70")},
        {**_requests("200", "0+99x70"), **_requests("503", "0+1x70")},
        # What the client did wrong.
        {**_requests("200", "0+9x70"), **_requests("400", "0+9x70")},
    ),
    case(
        "RollstreamFirstTokenSlow",
        _first_tokens("10", "0+50x70") | series(_FIRST_TOKEN, "generator", "0+60x70", le="30"),
        _first_tokens("10", "0+60x70"),
    ),
    case("RollstreamFeedbackUnmatched", _feedback("0+2x70"), _feedback("0+0.5x70")),
    case(
        "RollstreamAnswersDoNotTrain",
        _answers("0+100x70", "0x70"),
        _answers("0+100x70", "0+1x70"),
        # Few were recorded.
        _answers("0+1x70", "0x70"),
        # Nobody collects feedback.
        series(_ANSWERS, "generator", "0+100x70", outcome="recorded"),
    ),
    case("RollstreamIngestRefuses", _ingest("0+5x70"), _ingest("0+1x70")),
    case(
        "RollstreamFeedbackBehind",
        series("rollstream_feedback_behind_records", "producer", "20000x70"),
        series("rollstream_feedback_behind_records", "producer", "20000x40 0x30"),
        stage="producer",
        instance=instance("producer"),
    ),
    case(
        "RollstreamTrainingLaneDown",
        # It was restarted meanwhile.
        series(_LANE, "generator", "0x20 _x9 0x40") | series("rollstream_serve_ready", "generator", "1x70"),
        # It can answer no more either: other alerts say so.
        series(_LANE, "generator", "0x70") | series("rollstream_serve_ready", "generator", "0x70"),
        series(_LANE, "generator", "1x70") | series("rollstream_serve_ready", "generator", "1x70"),
        stage="generator",
        instance=instance("generator"),
    ),
)
