"""The two kinds of servers that a test runs on: a parameter of fixtures and tests."""

import pytest

ENGINES = [pytest.param("cluster", marks=pytest.mark.real_cluster), "embedded"]
