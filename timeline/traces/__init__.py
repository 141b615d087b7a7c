"""What a pending write leaves in a table (markers, files, log blocks), and how it is found and revoked."""
