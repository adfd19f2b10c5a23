"""Tables of times that anyone measured."""
