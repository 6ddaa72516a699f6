"""Prompts for RL and demonstrations for SFT."""

from rollstream.training.datasets.data_buffer import DataBuffer

__all__ = ["DataBuffer"]
