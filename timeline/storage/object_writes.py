"""Conditional writes to an object store, whose answers may be lost: an object that is put, and a copy that is placed.

A conditional write whose answer is lost looks like a lost race, so none is ever left to the library's retries. Each put
carries an id of its own, and after any answer but "done" that id is read back.
"""
