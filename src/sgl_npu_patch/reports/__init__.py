"""Print documents: formats.py knows every format, codec.py every document."""
