"""The process that owns the mount and outlives the workers that serve it. Standard library only: it must stay small and simple."""
