"""The layout of bytes: headers, columns of bytes, unaligned words."""
