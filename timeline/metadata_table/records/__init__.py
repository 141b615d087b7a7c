"""Records of the metadata table and the HFiles that contain them: bytes to entries and back."""
