"""An HTTP server over a loaded pair: the APIs of OpenAI and Anthropic, one answer at a time."""
