"""Random programs of Fluss's client for Java, on a real cluster and on the embedded engine.

Both must answer the same: rows with their offsets and changes, descriptions of tables, and which
exception is raised. Texts of errors that differ are counted, and shown with ``--messages``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import random
import re
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluss_df.cluster import LocalCluster
from fluss_df.cluster.servers.jars import copy_artifact, made_once
from fluss_df.cluster.servers.java import find_java
from fluss_df.embedded import EmbeddedFluss
from tests.campaigns.java_programs import Order, Program, taken

_MAIN = Path(__file__).with_name("JavaClient.java")
_OPENS = ("java.nio", "sun.nio.ch", "java.lang", "java.util")
_LONGEST_S = 100.0
# characters of an order, an answer or an error that are printed
_SHOWN = 2000


def client_jar(version: str) -> Path:
    """Return the jar of a version of the client, from Maven the first time."""

    def fill(folder: Path) -> None:
        copy_artifact(f"org.apache.fluss:fluss-client:{version}", "fetch Fluss's client", folder)

    (jar,) = made_once(f"fluss-client-{version}", fill).glob("*.jar")
    return jar


class JavaClient:
    """A process with the client, at the server ``where``."""

    def __init__(self, version: str, address: str) -> None:
        opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENS]
        command = [str(find_java()), "-Xmx512m", *opens, "-cp", str(client_jar(version))]
        self._process = subprocess.Popen(
            [*command, str(_MAIN), address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("JAVA_SAYS") else None,
            text=True,
        )
        self.where = address
        self._sent = ""
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def send(self, order: Order) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._sent = json.dumps(order)
        print(self._sent, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Return the answer to the oldest order that has none yet."""
        try:
            line = self._answers.get(timeout=_LONGEST_S)
        except queue.Empty:
            raise AssertionError(f"{self.where} does not answer {self._sent}") from None
        assert line, f"the client at {self.where} ended at {self._sent}"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


# ---- comparison

# what 0.9.1 says of tables and partitions of which its tablet server has not heard yet
_NOT_READY = re.compile(
    "Leader not found after retry|Failed to update metadata|is not leader or follower for"
)
_WRITES = ("append", "upsert", "delete", "lookup")
# how the client refuses a write before it looks at its rows
_REFUSED = ("IllegalStateException", "IllegalArgumentException")
_NUMBERS = re.compile(r"-?\d+")


def plain(message: str) -> str:
    """A message without its numbers."""
    return _NUMBERS.sub("#", message)


@dataclass
class Comparison:
    """What both servers answered.

    Attributes
    ----------
    done
        How many orders of each kind the cluster obeyed, and refused.
    failed
        Orders that were answered otherwise.
    late
        Programs that ended because the cluster did not know their tables yet, or a write failed.
    broken
        Why the cluster failed, without a code, at what the embedded engine did -> how often. Their
        programs ended, too.
    texts
        Kind of order and the two texts of an error -> how often, and an order.
    """

    done: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: int = 0
    late: int = 0
    broken: collections.Counter[str] = field(default_factory=collections.Counter)
    texts: dict[tuple[str, str, str], tuple[int, Order]] = field(default_factory=dict)

    def run(self, seed: int, length: int, clients: Sequence[JavaClient]) -> None:
        """Run a program on both; end it where the cluster is not ready for it."""
        program = Program(random.Random(seed), f"d{seed}")
        for order in program.orders(length):
            asked = {"database": program.database} | order
            for client in clients:
                client.send(asked)
            real, ours = (client.answer() for client in clients)
            self.done[f"{order['do']}: {'done' if 'ok' in real else 'refused'}"] += 1
            texts = real.pop("message", ""), ours.pop("message", "")
            timed_out = real.get("error") == "TimeoutException"
            if timed_out or (real != ours and _NOT_READY.search(texts[0])):
                # what its client could not send now it may send later
                self.late += 1
                return
            if real != ours and real.get("error") == "UnknownServerException":
                if "ok" in ours:
                    # what a Java class of 0.9.1 fails at, is done here: from now on they differ
                    self.broken[texts[0].partition("\n")[0]] += 1
                    return
            elif real != ours:
                self.failed += 1
                print(f"seed {seed}: {json.dumps(asked)[:_SHOWN]}")
                print("   real:", json.dumps(real)[:_SHOWN], texts[0][:_SHOWN])
                print("   ours:", json.dumps(ours)[:_SHOWN], texts[1][:_SHOWN], flush=True)
            elif plain(texts[0]) != plain(texts[1]):
                kind = (order["do"], plain(texts[0]), plain(texts[1]))
                self.texts[kind] = (self.texts.get(kind, (0, order))[0] + 1, order)
            if order["do"] in _WRITES and real.get("error") not in (None, *_REFUSED):
                # of the rows of a write that failed, some may still be on their way
                self.late += 1
                return
            taken(program, order, real)

    def show(self, *, messages: bool) -> None:
        """Print what there was."""
        for (do, theirs, own), (count, order) in sorted(self.texts.items() if messages else ()):
            print(f"{count} x {do}: {json.dumps(order)[:_SHOWN]}")
            print(f"   real: {theirs[:_SHOWN]}\n   ours: {own[:_SHOWN]}")
        print(json.dumps(dict(sorted(self.done.items())), indent=1))
        print(json.dumps(self.broken, indent=1))
        print(
            f"{self.done.total()} orders, {self.failed} answered otherwise;"
            f" {len(self.texts)} texts of errors differ; {self.late} programs ended early"
        )


def main() -> None:
    """Run programs, and tell where the two servers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--length", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--client", default="0.9.1-incubating")
    parser.add_argument("--messages", action="store_true")
    options = parser.parse_args()
    found = Comparison()
    with LocalCluster(tablet_servers=1) as cluster, EmbeddedFluss(port=0) as engine:
        assert engine.address is not None
        servers = (cluster.bootstrap_servers, engine.address)
        with contextlib.ExitStack() as stack:
            clients: list[JavaClient] = []
            late = -1
            for seed in range(options.seed, options.seed + options.programs):
                if found.late > late:
                    stack.close()
                    clients = [
                        stack.enter_context(contextlib.closing(JavaClient(options.client, at)))
                        for at in servers
                    ]
                    late = found.late
                found.run(seed, options.length, clients)
    found.show(messages=options.messages)
    assert not found.failed


if __name__ == "__main__":
    main()
