"""What a user asks of any model: readouts after every loop, patches, heads, replies."""
