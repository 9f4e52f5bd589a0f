"""Images with labels.

image_files     read .npz and idx files; normalised batches with random crops and flips
"""
