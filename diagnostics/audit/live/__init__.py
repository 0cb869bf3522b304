"""A server that samples: asked over HTTP, beside the checkpoint that it should hold."""
