"""Prompt injection: attacks with canaries on a model that writes text, defences, and detectors."""
