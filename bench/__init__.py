"""Measurements and the demonstration: what Headrace does, shown on one machine with a long link in the middle."""
