"""What a table's timeline is, as plain data: for `timeline show` and for the service's pages."""
