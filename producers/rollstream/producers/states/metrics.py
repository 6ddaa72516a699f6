"""Metrics of the producer of states; imported where there is one."""

from prometheus_client import Counter

ROLLOUTS = Counter(
    "rollstream_states_rollouts_total",
    "Answers to clients that the producer of states has read, by what became of their states: posed, no_cycles (not of "
    "reasoning_cache, or not completed), no_consent, repeat (it came before), or unusable",
    ["outcome"],
)
for _outcome in ("posed", "no_cycles", "no_consent", "repeat", "unusable"):
    ROLLOUTS.labels(outcome=_outcome)
