"""What is known of SGLang, each fact once."""
