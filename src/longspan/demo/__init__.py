"""What `longspan demo` measures: who leaks, what pays on this machine, and a little model that learns."""
