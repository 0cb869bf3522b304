"""A compact reference GRPO trainer with three rollout modes: colocate, async, server.

It runs inside matrix cells, so it needs only Python >= 3.10, PyTorch and transformers (with safetensors). The `vllm`
engine also needs vLLM; a rollout server FastAPI and uvicorn; adapters peft; data sets pyarrow or datasets.
"""
