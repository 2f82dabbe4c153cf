"""The table of errors, and what an error shows."""

from __future__ import annotations

import pickle

import pytest

from fluss_df import errors
from fluss_df.errors import ErrorCode, FlussError
from tests.peer import official


def constants() -> dict[str, int]:
    return {k: v for k, v in vars(ErrorCode).items() if k.isupper()}


def test_every_constant_has_its_name_and_every_name_its_constant() -> None:
    names = {FlussError("", code).code_name: code for code in range(-2, 200)}
    assert {name: code for name, code in names.items() if name != str(code)} == constants()


def test_no_code_is_left_out() -> None:
    assert sorted(constants().values()) == list(range(-2, 76))


def test_codes_are_those_of_the_official_client() -> None:
    theirs = {k: v for k, v in vars(official.ErrorCode).items() if k.isupper()}
    assert theirs
    assert {name: constants().get(name) for name in theirs} == theirs


# retriable by their name and by when servers send them; not so in the official client
OURS = {ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION, ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION}


@pytest.mark.parametrize("code", sorted(set(range(1, 66)) - OURS))
def test_retriable_as_in_the_official_client(code: int) -> None:
    assert FlussError("x", code).is_retriable == official.FlussError("x", code).is_retriable


def test_retriable_beyond_the_official_client() -> None:
    assert all(FlussError("x", code).is_retriable for code in OURS)


def test_client_errors_show_their_message_only() -> None:
    error = FlussError("no such thing")
    assert str(error) == "no such thing"
    assert error.error_code == ErrorCode.CLIENT_ERROR
    assert error.code_name == "CLIENT_ERROR"
    assert not error.is_retriable


def test_server_errors_show_their_code() -> None:
    assert str(FlussError("gone", 7)) == "gone [TABLE_NOT_EXIST, code 7]"
    assert str(FlussError("new", 999)) == "new [999, code 999]"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.FlussError, ErrorCode.CLIENT_ERROR),
        (errors.SchemaMismatchError, ErrorCode.CLIENT_ERROR),
        (errors.ProtocolError, ErrorCode.CORRUPT_MESSAGE),
        (errors.NetworkError, ErrorCode.NETWORK_EXCEPTION),
        (errors.DeadlineExceededError, ErrorCode.REQUEST_TIME_OUT),
    ],
)
def test_classes(kind: type[FlussError], code: int) -> None:
    error = kind("message")
    assert error.error_code == code
    assert isinstance(error, FlussError)
    copied = pickle.loads(pickle.dumps(kind("message", 42)))
    assert type(copied) is kind
    assert (copied.message, copied.error_code) == ("message", 42)


def test_a_deadline_is_a_timeout() -> None:
    assert issubclass(errors.DeadlineExceededError, TimeoutError)
