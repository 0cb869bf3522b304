"""A compact reference GRPO trainer with three rollout modes: colocate, async, server.

It runs inside matrix cells, so it needs only Python >= 3.10, PyTorch and transformers (with safetensors);
vLLM where the `vllm` engine is asked for, FastAPI and uvicorn where a rollout server is started.
"""
