"""What each reader answers for tables in the states that Hudi's readers have got wrong: the matrix of readers.

`make` lets real Hudi make the tables; `history` is what was written to each, and `model` what a reader must answer by
it. `ask` asks one reader, `record` all of them, and `page` shows their answers as `docs/reference/conformance.md`.
"""
