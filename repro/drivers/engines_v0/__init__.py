"""The whole V0 engine, as its callers use it: `LLM`, `LLMEngine`, `AsyncLLMEngine`, and vLLM's own server.

The engine, its scheduler, its worker and its forward pass are real, on a CPU; the model is tiny and its weights are
random. The moment at which something happens is chosen by a logits processor, a callback that vLLM takes from its user
with a request and calls within the step that samples: it holds that step, or raises in it.
"""
