"""The rooms that decide: values in, values out. No await, socket, file, clock, log or global randomness."""
