"""What a spoke can say about itself: who waited for what, why a read was slow, how the last hour went.

All but ``processes`` and ``watch`` is pure: events and ``now_s`` in, facts out.
"""
