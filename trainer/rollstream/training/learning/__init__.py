"""The core of training: samples, losses, the learner and its step."""
