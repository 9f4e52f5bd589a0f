"""Keep trained weights: swap a model's attention, heal it by distillation, make it lighter."""
