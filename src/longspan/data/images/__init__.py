"""Images with labels, read from files.

- `image_files`: readers of image folders and arrays, and batches of them.
"""
