"""Deterministic ids: a prompt that comes again gives the same group, a sample that is drawn again the same rollout."""

import hashlib
import re
import uuid

from rollstream.schemas.addresses import quoted_if_plain

RUN_PATTERN = re.compile(r"[a-z0-9-]{1,60}")


def checked_run(run: str) -> str:
    """`run`, if it can be a prefix of topics, consumer groups and transactional ids; raises ValueError otherwise."""
    if not RUN_PATTERN.fullmatch(run):
        raise ValueError(f"run {quoted_if_plain(run)} must match [a-z0-9-]{{1,60}}")
    return run


def group_id(run: str, prompt_id: str, epoch: int) -> str:
    """32 hex digits from (run, prompt, epoch): a prompt that is submitted again in its epoch is the same group."""
    # Neither run nor epoch can hold a NUL byte, so different inputs never give the same text.
    return hashlib.sha256(f"{run}\0{prompt_id}\0{epoch}".encode()).hexdigest()[:32]


def rollout_id(group: str, sample_index: int) -> str:
    """The rollout id of a sample; a retry keeps it and gets a new attempt id."""
    return f"{group}-{sample_index}"


def group_of(rollout: str) -> str:
    return rollout.rsplit("-", 1)[0]


def new_attempt_id() -> str:
    return uuid.uuid4().hex
