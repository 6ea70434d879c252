"""Traces of what loaders read, and a simulator that runs predictors and eviction policies over them."""
