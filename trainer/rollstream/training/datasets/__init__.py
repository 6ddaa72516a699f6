"""Prompts for RL and demonstrations for SFT."""

from rollstream.training.datasets.data_buffer import DataBuffer
from rollstream.training.datasets.sft import load_sft_dataset

__all__ = ["DataBuffer", "load_sft_dataset"]
