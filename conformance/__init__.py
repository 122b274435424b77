"""Arrays with concat-parts, pad, offset and packbits, their expected values, and a program that checks a reader."""
