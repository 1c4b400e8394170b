"""Conversations in the user's data folder."""

from dflash_tui.application.conversations.store.card import Card, title_of
from dflash_tui.application.conversations.store.conversations import Entry, Store, StoredConversation
from dflash_tui.application.conversations.store.database import StoreError

__all__ = ["Card", "Entry", "Store", "StoreError", "StoredConversation", "title_of"]
