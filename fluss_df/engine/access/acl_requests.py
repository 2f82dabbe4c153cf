"""Requests that give, list and take rights."""

from __future__ import annotations

from typing import NoReturn

from google.protobuf.message import Message

from fluss_df.engine.access.acl_store import MOST_ACLS
from fluss_df.engine.access.authorizer import Rights
from fluss_df.engine.files.workers import paced
from fluss_df.errors import ErrorCode, FlussError
from fluss_df.protocol import messages_pb2 as pb
from fluss_df.protocol.acl import binding_message, binding_of, filter_of


def create_acls(request: pb.CreateAclsRequest, rights: Rights | None) -> Message:
    """Add bindings: all, or none where one cannot be added."""
    if rights is None:
        _no_authorizer()
    _check_count(len(request.acl))
    bindings = [binding_of(acl) for acl in paced(request.acl)]
    if len(set(bindings)) < len(bindings):
        raise FlussError(
            "an access control list is twice in the request", ErrorCode.UNKNOWN_SERVER_ERROR
        )
    if bindings:
        rights.create_acls(bindings)
    response = pb.CreateAclsResponse()
    for acl in paced(request.acl):
        response.results.add(acl=acl, error_code=ErrorCode.NONE)
    return response


def list_acls(request: pb.ListAclsRequest, rights: Rights | None) -> Message:
    """List the bindings of what may be described."""
    if rights is None:
        _no_authorizer()
    found = rights.list_acls(filter_of(request.acl_filter))
    return pb.ListAclsResponse(acl=map(binding_message, paced(found)))


def drop_acls(request: pb.DropAclsRequest, rights: Rights | None) -> Message:
    """Drop bindings: all that match, or none where one cannot be dropped."""
    if rights is None:
        _no_authorizer()
    _check_count(len(request.acl_filter))
    filters = [filter_of(each) for each in paced(request.acl_filter)]
    response = pb.DropAclsResponse()
    for dropped in paced(rights.drop_acls(filters)):
        matching = response.filter_results.add().matching_acls
        for binding in paced(dropped):
            matching.add(acl=binding_message(binding))
    return response


def _check_count(count: int) -> None:
    # checked before objects are made of them
    if count > MOST_ACLS:
        raise FlussError(
            f"{count:,} access control lists, or filters of them, in one request, where"
            f" {MOST_ACLS:,} are accepted: ask for fewer at once",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )


def _no_authorizer() -> NoReturn:
    raise FlussError("No Authorizer is configured.", ErrorCode.SECURITY_DISABLED_EXCEPTION)
