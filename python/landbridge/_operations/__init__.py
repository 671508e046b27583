"""Operations under way: collectives, commits and requests to the store, and waits for them."""
