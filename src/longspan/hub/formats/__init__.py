"""File formats of checkpoints.

safetensors_files  Hugging Face folders: one safetensors file or shards, mapped into memory
gguf               llama.cpp's models: read and write
gguf_file          the GGUF container: header and tensors
gguf_tokenizer     the tokenizer inside a GGUF file
gguf_vocabulary    a tokenizer as GGUF metadata, for writing
llama2c            karpathy's llama2.c: model and tokenizer
rotary_order       the two orders of rotary features
readers            formats that are converted, not loaded: their registry
pickles            PyTorch pickles, tensors only
fairseq            fairseq's checkpoints
"""
