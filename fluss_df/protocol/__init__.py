"""The wire protocol of Fluss without I/O: frames, API keys, messages, handshake."""
