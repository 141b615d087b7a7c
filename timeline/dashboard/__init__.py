"""What the service answers to people and their programs: the state of tables, in one word each."""
