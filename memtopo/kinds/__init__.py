"""The kinds of entries of a spec: what each may say, the steps that build it, and what they leave."""
