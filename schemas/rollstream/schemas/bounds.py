"""How large what a record holds may be. Anybody may write records: without a bound, a single one could end a stage.

A record beyond a bound can't be read: it becomes a dead letter. Only a prompt beyond one of the last five can be read:
its samples fail and its group closes (`prompt.out_of_bounds`).
"""

from typing import Final

MAX_COUNT: Final = 2**53
"""Whole numbers: a double, so JSON too, holds each up to here exactly."""
MAX_ID_CHARACTERS: Final = 128
"""Ids of groups, rollouts and attempts: 10,000 ids of 4 bytes a character fit into one entry of the ledger."""
MAX_NAME_CHARACTERS: Final = 1024
"""Names, paths and the ids of prompts, which hold a path."""
MAX_ITEMS: Final = 4096
"""Entries of one list or map of a prompt or a turn; conversations have hundreds of messages."""
MAX_VALUES: Final = 2**20
"""Values that are read one by one from a record's bytes. 4 bytes can be a message, which takes 300 bytes of memory."""
MAX_CURRICULUM_BYTES: Final = 2**17
"""What a producer notes of its tasks, a byte each: it is written again with every batch."""
MAX_SECONDS: Final = 1e9
"""Durations: 30 years."""
MAX_REWARD: Final = 1e9
"""Rewards and their components, above and below 0: squares and sums of them stay finite in float32."""
MIN_LOGPROB: Final = -1000.0
"""Log probabilities: nothing below -104 is ever sampled, since float32 holds no smaller probability."""
MAX_LOGPROB: Final = 1e-3
"""Log probabilities: 0 is certain; above it an engine only rounds."""

MAX_GROUP_SIZE: Final = 1024
"""Samples of a prompt: each runs at the same time as the others, and a group is trained on as a whole."""
MAX_GROUP_BYTES: Final = 2**28
"""Group size x bytes of the prompt as JSON: each sample's record holds the prompt, on `rollouts` and again on `scored`,
and the trainer keeps the samples in memory until the group is complete."""
MAX_SAMPLE_TOKENS: Final = 2**20
"""Tokens of one model call: at 8 bytes a token no record holds more."""
MIN_TEMPERATURE: Final = 0.01
"""Temperatures above 0: below, vLLM samples at 0.01, and logits divided by less overflow."""
MAX_TEMPERATURE: Final = 100.0
"""Temperatures: above, every token is as likely as any other."""

MAX_TURNS: Final = 128
"""Turns of a sample. An agent that asks for more is cut off."""
MAX_OBSERVATIONS: Final = 64
"""What an agent keeps for scorers, by name."""
MAX_OBSERVATION_BYTES: Final = 2**16
"""Of one of them."""
MAX_TOOL_CALLS: Final = 16
"""Calls of one turn. Later ones are not made, and the model is told."""
MAX_TOOL_ANSWER_BYTES: Final = 2**16
"""What the model sees of one answer of a tool."""
