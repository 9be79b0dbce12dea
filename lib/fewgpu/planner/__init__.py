"""Planners: what a way to train would cost, computed before anything is bought or started."""
