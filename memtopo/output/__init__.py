"""What is shown: data in, text, tables or JSON out. Nothing here decides anything."""
