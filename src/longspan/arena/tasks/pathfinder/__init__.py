"""Pathfinder and Path-X: do two discs lie on the same dashed curve?

- `task`: the task; `folders` reads released images, `drawing` and `stencils` draw new ones.
- `shortcuts`: statistics that could give the label away without following a curve.
"""
