"""The experiment: one training job on a local directory and across a long link, run by run, with a report."""
