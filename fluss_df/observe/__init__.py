"""What a process tells those who watch it: counters, spans and logs; exported elsewhere."""
