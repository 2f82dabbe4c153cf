"""The cases of broken traffic, with this client and the official one: a table for the docs."""

from __future__ import annotations

from fluss_df.cluster import LocalCluster
from tests.faults.beside import beside
from tests.faults.fault_cases import CASES


def main() -> None:
    """Run all cases with both clients, and print what they saw."""
    print("| case | fluss_df | pyfluss |")
    print("|---|---|---|")
    with beside(LocalCluster) as server:
        for case in CASES:
            cells = []
            for client in ("ours", "official"):
                seen = server.run(case, client)
                assert seen["hit"] or seen["outcome"] != "ok", case.name
                took = f", {seen['seconds']} s"
                cells.append(f"{seen['outcome']}; rows: {seen['rows']}{took}".replace("|", "/"))
            print(f"| {case.name} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
