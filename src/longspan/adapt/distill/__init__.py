"""Distillation: a small model learns from a large one (Hinton et al. 2015; Sanh et al. 2019)."""
