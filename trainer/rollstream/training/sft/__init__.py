"""Supervised fine-tuning on demonstrations or rollouts."""
