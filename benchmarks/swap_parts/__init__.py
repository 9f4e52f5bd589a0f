"""The parts of benchmarks/swap_results.py: `losses` of decoders, `decoding` by length, `encoders`."""
