"""Cleaning: which files no reader needs, and which ones no instant, plan or record names, and their removal."""
