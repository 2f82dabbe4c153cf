"""What a round of tiering is made of, whatever the format of the lake."""
