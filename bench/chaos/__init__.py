"""A real hub, a real spoke, readers that check every byte, and faults from a seed: never a wrong byte, never stuck."""
