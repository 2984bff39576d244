"""How members come back: after a broken connection, or to a master that was started again."""
