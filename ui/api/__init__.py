"""The OpenAI-compatible API under /v1, and what operators ask for: /healthz and /metrics."""
