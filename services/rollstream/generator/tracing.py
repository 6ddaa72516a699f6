"""The span of one sample, from its record: a child of its prompt's span, named as OpenTelemetry names model calls."""

from rollstream.process.tracing.context import TraceHeaders
from rollstream.process.tracing.spans import GROUP_ID, ROLLOUT_ID, WEIGHT_VERSION, Span, Tracing
from rollstream.schemas.rollout import RolloutGenerated


def headers_of_sample(tracing: Tracing, model: str, prompt_span: Span, sample: RolloutGenerated) -> TraceHeaders:
    """What the sample's rollout carries on: the context of its own span, which is over by now."""
    if not prompt_span.is_recorded:
        return prompt_span.headers
    span = tracing.start(f"chat {model}", parent=prompt_span.context, started_at=sample.started_at)
    span.set(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": sample.generator.engine,
            "gen_ai.request.model": model,
            "gen_ai.request.temperature": sample.prompt.sampling.temperature,
            "gen_ai.request.max_tokens": sample.prompt.sampling.max_tokens,
            "gen_ai.usage.input_tokens": sum(len(turn.prompt_token_ids) for turn in sample.turns),
            "gen_ai.usage.output_tokens": sample.num_completion_tokens,
            "gen_ai.response.finish_reasons": [turn.finish_reason.value for turn in sample.turns[-1:]],
            GROUP_ID: sample.group_id,
            ROLLOUT_ID: sample.rollout_id,
            **({WEIGHT_VERSION: max(sample.weight_versions)} if sample.weight_versions else {}),
        }
    )
    if sample.failure is not None:
        span.fail(sample.failure.code.value)
    span.end(sample.finished_at)
    return span.headers
