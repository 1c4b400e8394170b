"""Conversations in the user's data folder."""

from dflash_tui.application.conversations.store.conversations import Entry, Store, StoredConversation
from dflash_tui.application.conversations.store.rows import Card, title_of

__all__ = ["Card", "Entry", "Store", "StoredConversation", "title_of"]
