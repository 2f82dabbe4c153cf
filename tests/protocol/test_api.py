"""The table of requests."""

from __future__ import annotations

from fluss_df.protocol import api
from fluss_df.protocol.api import Api


def apis() -> list[Api[object, object]]:  # type: ignore[type-var]
    return [value for value in vars(api).values() if isinstance(value, Api)]


def test_keys_and_names_are_unique() -> None:
    assert len({a.key for a in apis()}) == len(apis())
    assert len({a.name for a in apis()}) == len(apis())


def test_names_are_those_of_the_constants() -> None:
    for name, value in vars(api).items():
        if isinstance(value, Api):
            assert value.name == name


def test_requests_and_responses_belong_together() -> None:
    for a in apis():
        request, response = a.request.__name__, a.response.__name__
        assert request.removesuffix("Request") == response.removesuffix("Response")
