"""SFT, RL, or one after the other, as one file of settings describes them."""
