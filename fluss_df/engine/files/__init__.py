"""Files that survive, the owner of a folder, threads for the disk."""
