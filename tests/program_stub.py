"""Stands before a program of ``tests.programs``: has it run with its own streams, ends as it ends.

``subprocess`` starts this one. Few modules are imported: it takes a hundredth of a second.
"""

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOL_SOCKET, socket
from marshal import dumps

_, address, *arguments = sys.argv
asked = socket(AF_UNIX)
asked.connect(address)
text = dumps((arguments, dict(os.environ), os.getcwd()))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
asked.sendmsg([len(text).to_bytes(4, "big")], [(SOL_SOCKET, SCM_RIGHTS, streams)])
asked.sendall(text)
for stream in (0, 1, 2):
    os.close(stream)
status = int(asked.recv(64) or b"1")
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
