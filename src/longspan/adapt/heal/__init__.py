"""Heal a model whose attention was swapped: attention transfer, then distillation from the original.

heal      `heal`: the whole run
options   `HealOptions`
pair      the teacher and the student, checked
texts     blocks of training tokens
stage1    attention transfer, layer by layer
stage2    distillation
lora      adapters that are merged into the weights
schedule  learning rate and window dropout
parts     the window and the linear part of a hybrid
run       the loop: plan, steps, measurements, checkpoints
table     teacher, swapped and healed model beside each other
"""

from longspan.adapt.heal.heal import Healed, heal
from longspan.adapt.heal.options import HealOptions, seconds

__all__ = ["HealOptions", "Healed", "heal", "seconds"]
