"""Fixtures and settings for all tests."""

from hypothesis import settings

pytest_plugins = ["tests.judge.fixtures", "tests.zookeeper", "tests.ensemble", "tests.spark_cluster"]

# No deadline: on a shared machine it fails tests at random. A failure prints how to run it again.
settings.register_profile("phantombase", deadline=None, print_blob=True)
settings.load_profile("phantombase")
