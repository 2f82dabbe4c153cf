"""The console: a cluster or a folder, in the browser. ``fluss-df ui`` starts it."""
