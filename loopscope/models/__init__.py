"""Language models: one file for each adapter, model folders, tokenizer and chat, decoding."""
