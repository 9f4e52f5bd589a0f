"""Weight formats other than Hugging Face's safetensors folders, and the readers of those.

- `readers`: convert any known format to a folder that `load` reads.
- `gguf`, `gguf_file`, `gguf_tokenizer`, `gguf_vocabulary`: llama.cpp's GGUF files.
- `llama2c`: Karpathy's llama2.c files. `fairseq`: RoBERTa from fairseq. `pickles`: `pytorch_model.bin`.
- `safetensors_files`: the tensors of a folder, memory-mapped. `rotary_order`: the two orders of rotary pairs.
"""
