"""How bytes lie: headers, columns of bytes, unaligned words."""
