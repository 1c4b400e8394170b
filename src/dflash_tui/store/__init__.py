"""Conversations in the user's data folder."""

from dflash_tui.store.conversations import Card, Entry, Store, title_of
from dflash_tui.store.database import StoreError

__all__ = ["Card", "Entry", "Store", "StoreError", "title_of"]
