"""Adapters: LoRA (through PEFT), Houlsby's bottlenecks, and prefixes. `models/adapters.py` has what they share."""
