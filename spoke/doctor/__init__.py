"""What this host, this disk and this path cost a spoke, and how to mend it: the command ``doctor``.

``probe_*`` gather facts, each within a time limit and none through the mount; ``*_checks`` turn facts into findings and are pure.
"""
