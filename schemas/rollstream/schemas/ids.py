"""Deterministic ids: the same prompt of the same epoch always gives the same group, a retry the same rollout."""

import hashlib
import re
import uuid

RUN_PATTERN = re.compile(r"[a-z0-9-]{1,60}")


def checked_run(run: str) -> str:
    """The run name, which prefixes topics, groups and transactional ids; refuses what Kafka or ACLs would not take."""
    if not RUN_PATTERN.fullmatch(run):
        raise ValueError(f"run {run!r} must match [a-z0-9-]{{1,60}}")
    return run


def group_id(run: str, prompt_id: str, epoch: int) -> str:
    """32 hex digits from (run, prompt, epoch): the same prompt of an epoch, submitted again, is the same group."""
    return hashlib.sha256(f"{run}\0{prompt_id}\0{epoch}".encode()).hexdigest()[:32]


def rollout_id(group: str, sample_index: int) -> str:
    """A sample's id; a retry keeps it and gets a new attempt id."""
    return f"{group}-{sample_index}"


def group_of(rollout: str) -> str:
    """The group of a rollout id."""
    return rollout.rsplit("-", 1)[0]


def new_attempt_id() -> str:
    """A fresh id for one try at one sample."""
    return uuid.uuid4().hex
