"""Where responses are sampled: in this process, or by an engine on a server."""
