"""What the panels of lessons draw, where that is more than a few lines."""
