"""What a step leaves behind, and how a trainer goes on from it."""
