"""Model files of other programs: strict readers of safetensors and GGUF, and what turns them into models."""
