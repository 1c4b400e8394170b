"""States of conversations that are not in the session: stored in main memory, and on disk where that is enabled."""
