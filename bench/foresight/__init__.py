"""What fetching ahead is worth to jobs on a real mount behind a long link: ``python -m bench.foresight``."""
