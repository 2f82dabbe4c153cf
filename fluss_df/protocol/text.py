"""Texts of messages that are not UTF-8."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def replace_malformed(message: Message) -> None:
    """Put U+FFFD in place of what is not UTF-8 in a message's texts, as Fluss' server does.

    Protobuf hands such texts out as bytes, which nothing behind it expects.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                replace_malformed(part)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                for i, text in enumerate(value):
                    if isinstance(text, bytes):
                        value[i] = text.decode("utf-8", "replace")
            elif isinstance(value, bytes):
                setattr(message, field.name, value.decode("utf-8", "replace"))
