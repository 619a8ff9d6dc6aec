"""Payloads of the Commands about Conversations, Messages and Context Packages."""

from __future__ import annotations

from mwnode.protocol.commands.base import Payload
from mwnode.protocol.documents import Actor, ContentBlock, ContextPackage, Conversation, require_some, require_unique
from mwnode.protocol.scalars import Id, Text4000, Text100000

Content = Text100000 | tuple[ContentBlock, ...]


class MessagePost(Payload):
    message_id: Id
    content: Content
    conversation_id: Id | None = None
    mentions: tuple[Actor, ...] = ()
    references: tuple[Id, ...] = ()
    announcement: bool = False
    authority: bool | None = None

    def __post_init__(self) -> None:
        if self.authority:
            raise ValueError("a Message never carries authority")
        if not isinstance(self.content, str):
            require_some("content", self.content)
        require_unique("mentions", self.mentions)
        require_unique("references", self.references)


class MessageCorrect(Payload):
    amendment_id: Id
    message_id: Id
    reason: Text4000
    replacement_content: Content

    def __post_init__(self) -> None:
        if not isinstance(self.replacement_content, str):
            require_some("replacementContent", self.replacement_content)


class MessageRetract(Payload):
    amendment_id: Id
    message_id: Id
    reason: Text4000


class MessageRedact(Payload):
    amendment_id: Id
    message_id: Id
    reason: Text4000


class ConversationOpen(Payload):
    conversation: Conversation


class ContextPackagePublish(Payload):
    context_package: ContextPackage
    recipient: Actor | None = None
