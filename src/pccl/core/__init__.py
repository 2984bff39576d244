"""The part that decides: events and time in, effects out. No socket, clock, random number, thread or log in here."""
