"""The demonstration behind ``make demo``: real text, a real tokenizer, a real DataLoader, 60 ms in between."""
