"""What the tests of metrics share: scrapes, read by the parser of Prometheus's client library."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fluss_df.metrics import FlussCollector


@dataclass(frozen=True)
class Scrape:
    """The samples of a scrape, by name and labels."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """Return a value; 0 where there is none."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def sum(self, name: str) -> float:
        return sum(value for (sample, _), value in self.samples.items() if sample == name)

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for sample, labels in self.samples if sample == name}

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


def parsed(text: str) -> Scrape:
    return Scrape(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


class Scraper:
    """Scrapes one collector, by HTTP or in place."""

    def __init__(self, max_tables: int = 1000, url: str | None = None) -> None:
        self._url = url
        self._registry = CollectorRegistry()
        self._registry.register(FlussCollector(max_tables))

    def __call__(self) -> Scrape:
        if self._url is None:
            return parsed(generate_latest(self._registry).decode())
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            return parsed(answer.read().decode())


def grown(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    return after(name, **labels) - before(name, **labels)
