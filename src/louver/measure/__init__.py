"""Figures: accuracy with intervals, speed, memory, and the machine they were taken on."""
