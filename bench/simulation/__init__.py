"""The whole system in one process and one thread under a seed: hub, spokes, links and disks that fail, and a model that knows
the right answer. ``make sim``; not to be mixed up with ``bench/replay``, which simulates prefetch alone."""
