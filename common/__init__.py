"""What hub and spoke share: the wire, blocks and digests, errors, limits and the edges of the process.

Nothing here may import ``hub`` or ``spoke`` (import-linter proves it).
"""

__version__ = "0.1.0"
