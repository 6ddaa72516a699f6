"""Batches for RL, from prompts and a function that answers them."""

from rollstream.training.rollout_gen.async_rollout_manager import AsyncRolloutManager
from rollstream.training.rollout_gen.rollout_generation import generate_rollout_batches

__all__ = ["AsyncRolloutManager", "generate_rollout_batches"]
