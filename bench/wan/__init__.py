"""What a hub and a spoke make of a long link: ``python -m bench.wan``.

``__main__`` has the flags and the order of things, ``load`` the readers (a process of its own), ``report`` what is left
behind: a table, JSON and a picture.
"""
